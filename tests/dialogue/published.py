"""Small files in the published formats, written by us: what the readers' tests and the fuzzing start from."""

import json

PERSONAS = {"self": ["i fish .", "i have two cats ."], "partner": ["i ski ."]}
EXCHANGES = [("hi , how are you ?", "fine ! i was fishing ."), ("my cat fishes too", "i have two cats .")]
SECOND = [("what do you do ?", "i am a baker ."), ("nice !", "thanks , and you ?")]


def convai2(kind: str = "self", *, candidates: bool = True, conversations=(EXCHANGES, SECOND)) -> str:
    """Text as in ``train_KIND_original.txt``, or ``..._no_cands.txt``."""
    return "\n".join(line for said in conversations for line in _numbered(kind, candidates, said)) + "\n"


def _numbered(kind: str, candidates: bool, said) -> list[str]:
    lines = [f"your persona: {line}" for line in PERSONAS["self"] if kind in ("self", "both")]
    lines += [f"partner's persona: {line}" for line in PERSONAS["partner"] if kind in ("other", "both")]
    for utterance, reply in said:
        offered = f"\t\ti like tea .|no|{reply}" if candidates else ""
        lines.append(f"{utterance}\t{reply}{offered}")
    return [f"{number} {line}" for number, line in enumerate(lines, start=1)]


def personachat(conversations=(EXCHANGES, SECOND)) -> list[dict]:
    """Records as in ``personachat_self_original.json``."""
    return [{"personality": PERSONAS["self"], "utterances": list(_histories(said))} for said in conversations]


def personachat_rows(conversations=(EXCHANGES, SECOND)) -> list[dict]:
    """Rows as in bavard/personachat_truecased."""
    return [
        {"personality": record["personality"], **utterance, "conv_id": i, "utterance_idx": j}
        for i, record in enumerate(personachat(conversations))
        for j, utterance in enumerate(record["utterances"])
    ]


def _histories(said):
    history = []
    for utterance, reply in said:
        history = [*history, utterance]
        yield {"history": history, "candidates": ["i like tea .", "no", reply]}
        history = [*history, reply]


def conv_ai_2() -> list[dict]:
    def turn(sender: int, kind: str, text: str) -> dict:
        return {"id": 0, "sender": f"participant{sender}", "text": text, "sender_class": kind}

    dialog = [
        turn(2, "Bot", "hello !"),
        turn(1, "Human", "hi"),
        turn(1, "Human", "do you fish ?"),
        turn(2, "Bot", "i do not"),
        turn(1, "Human", ""),
        turn(1, "Human", "a pity 😊"),
    ]
    record = {"dialog_id": "0x1", "dialog": dialog, "bot_profile": ["i bake ."], "user_profile": PERSONAS["self"]}
    return [record | {"eval_score": 4, "profile_match": 1}]


SENTENCE = "Tea is an aromatic beverage."
OTHER_SENTENCE = "Green tea comes from China."


def wizard_turn(speaker: str, text: str, checked=None) -> dict:
    turn = {"speaker": speaker, "text": text, "retrieved_topics": ["Tea"], "retrieved_passages": [{"Tea": [SENTENCE]}]}
    if "Wizard" in speaker:
        turn["checked_sentence"] = {} if checked is None else {"chosen_Tea_0": checked}
        turn["checked_passage"] = {} if checked is None else {"chosen_topic_0_Tea": "Tea"}
    return turn


def wizard() -> list[dict]:
    """Conversations as in ``train.json``: the wizard opens the first, the apprentice the second."""
    opened_by_wizard = [
        wizard_turn("0_Wizard", "I love tea, it smells so good. ", SENTENCE),
        wizard_turn("1_Apprentice", "Me too! Where is it from?"),
        wizard_turn("0_Wizard", "Green tea is from China.", OTHER_SENTENCE),
        wizard_turn("1_Apprentice", "Nice."),
        wizard_turn("0_Wizard", "It is!", "no_passages_used"),
    ]
    opened_by_apprentice = [
        wizard_turn("0_Apprentice", "Do you drink tea?"),
        wizard_turn("1_Wizard", "Every day."),
        wizard_turn("0_Apprentice", "Which one?"),
        wizard_turn("1_Wizard", "The green one, from China.", OTHER_SENTENCE),
    ]
    return [
        {"chosen_topic": "Tea", "persona": "i drink tea .", "wizard_eval": 5, "chosen_topic_passage": [SENTENCE]}
        | {"dialog": dialog}
        for dialog in (opened_by_wizard, opened_by_apprentice)
    ]


def wizard_hub() -> list[dict]:
    """The same conversations as in chujiezheng/wizard_of_wikipedia."""
    knowledge = ["no_passages_used __knowledge__ no_passages_used", f"Tea __knowledge__ {SENTENCE}"]
    knowledge += [f"Tea __knowledge__ {OTHER_SENTENCE}"]
    records = []
    for record, labels in zip(wizard(), ([1, 2, 0], [0, 2]), strict=True):
        said = [turn["text"] for turn in record["dialog"]]
        if len(said) % 2:
            posts = ["Tea", *said[1::2]]
            responses = said[::2]
        else:
            posts = [f"Tea\n{said[0]}", *said[2::2]]
            responses = said[1::2]
        exchanges = len(posts)
        records.append(
            {"topics": ["Tea"] * exchanges, "post": posts, "response": responses}
            | {"knowledge": [knowledge] * exchanges, "labels": labels}
        )
    return records


def lines(records: list[dict]) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


# Every layout: the spec's name, and the text of a file.
FILES = {
    "jsonl": ("jsonl", lines([{"context": ["hi 😊", "yes ?"], "response": "well", "persona": "p"}] * 3)),
    "convai2_self": ("convai2", convai2()),
    "convai2_both_no_cands": ("convai2", convai2("both", candidates=False)),
    "personachat_json": ("convai2", json.dumps({"train": personachat(), "valid": personachat((SECOND,))})),
    "personachat_list": ("convai2", json.dumps(personachat(), indent=1)),
    "personachat_rows": ("convai2", lines(personachat_rows())),
    "conv_ai_2": ("convai2", json.dumps(conv_ai_2())),
    "wizard_json": ("wizard", json.dumps(wizard(), indent=1)),
    "wizard_hub": ("wizard", lines(wizard_hub())),
}
