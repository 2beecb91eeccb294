import json

import pytest

import published
from grpo_from_scratch.dialogue import conversations
from grpo_from_scratch.dialogue.convai2 import convai2_conversations
from grpo_from_scratch.dialogue.conversations import Conversation, Message, replies
from grpo_from_scratch.dialogue.dataset import Example
from grpo_from_scratch.dialogue.readers import load_examples, stream_examples
from grpo_from_scratch.dialogue.wizard import wizard_conversations

PERSONA = ("i fish .", "i have two cats .")
PERSONA_CHAT = [
    Example(("hi , how are you ?",), ("fine ! i was fishing .",), PERSONA),
    Example(
        ("hi , how are you ?", "fine ! i was fishing .", "my cat fishes too"),
        ("i have two cats .",),
        background=PERSONA,
    ),
    Example(("what do you do ?",), ("i am a baker .",), PERSONA),
    Example(("what do you do ?", "i am a baker .", "nice !"), ("thanks , and you ?",), PERSONA),
]
WIZARD = [
    Example(("Tea",), ("I love tea, it smells so good.",), (published.SENTENCE,), topic="Tea"),
    Example(
        ("I love tea, it smells so good.", "Me too! Where is it from?"),
        ("Green tea is from China.",),
        (published.OTHER_SENTENCE,),
        topic="Tea",
    ),
    Example(("Me too! Where is it from?", "Green tea is from China.", "Nice."), ("It is!",), topic="Tea"),
    Example(("Do you drink tea?",), ("Every day.",), topic="Tea"),
    Example(
        ("Do you drink tea?", "Every day.", "Which one?"),
        ("The green one, from China.",),
        (published.OTHER_SENTENCE,),
        topic="Tea",
    ),
]


def examples(folder, spec, text):
    path = folder / "data"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [example for _, example in stream_examples(f"{spec}:{path}")]


@pytest.mark.parametrize("kind", ["self", "both", "other", "none"])
@pytest.mark.parametrize("candidates", [True, False])
def test_convai2_text_has_the_speakers_own_persona(tmp_path, kind, candidates):
    """The partner's persona is not known to whoever replies, so it is no background."""
    known = PERSONA if kind in ("self", "both") else ()
    expected = [Example(example.turns, example.references, known) for example in PERSONA_CHAT]
    assert examples(tmp_path, "convai2", published.convai2(kind, candidates=candidates)) == expected


def test_convai2_as_pitfall_dt_07_tells_it(tmp_path):
    """DT-07: numbers that restart, candidates that are no turns, an opening silence; nothing crosses the boundary."""
    text = (
        "1 your persona: i fish .\n2 hi\thello\t\tbye|hello\n3 ok\tsure\n1 your persona: i ski .\n2 __SILENCE__\they\n"
    )
    path = tmp_path / "data.txt"
    path.write_text(text)
    found = list(convai2_conversations(path))
    assert [[message.text for message in conversation.messages] for conversation in found] == [
        ["hi", "hello", "ok", "sure"],
        ["hey"],
    ]
    assert [[message.background for message in conversation.messages][-1] for conversation in found] == [
        ("i fish .",),
        ("i ski .",),
    ]
    assert examples(tmp_path, "convai2", text) == [
        Example(("hi",), ("hello",), ("i fish .",)),
        Example(("hi", "hello", "ok"), ("sure",), ("i fish .",)),
    ], "an opening answers nothing, so it is only context"


def test_convai2_conversations_of_one_line(tmp_path):
    assert examples(tmp_path, "convai2", "1 hi\thello\n1 you\tme\n") == [
        Example(("hi",), ("hello",)),
        Example(("you",), ("me",)),
    ]


def test_convai2_four_columns_with_a_reward(tmp_path):
    assert examples(tmp_path, "convai2", "1 hi\thello\t0.5\tbye|hello\n") == [Example(("hi",), ("hello",))]


@pytest.mark.parametrize(
    "written", [json.dumps, published.lines, lambda x: json.dumps({"train": x[:1], "valid": x[1:]})]
)
@pytest.mark.parametrize("records", [published.personachat, published.personachat_rows])
def test_personachat_json_is_what_the_text_is(tmp_path, records, written):
    assert examples(tmp_path, "convai2", written(records())) == PERSONA_CHAT


def test_conv_ai_2_learns_from_the_human(tmp_path):
    assert examples(tmp_path, "convai2", json.dumps(published.conv_ai_2())) == [
        Example(("hello !",), ("hi do you fish ?",), PERSONA),
        Example(("hello !", "hi do you fish ?", "i do not"), ("a pity 😊",), PERSONA),
    ]
    nested = published.conv_ai_2()
    nested[0]["user_profile"] = [[line] for line in nested[0]["user_profile"]]  # as the hub's schema has it
    assert examples(tmp_path, "convai2", json.dumps(nested))[0].background == PERSONA


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(published.wizard()),
        json.dumps(published.wizard(), indent=4),
        published.lines(published.wizard()),
        published.lines(published.wizard_hub()),
        json.dumps(published.wizard_hub()),
    ],
)
def test_wizard_opens_with_the_topic_and_knows_the_checked_sentence(tmp_path, text):
    assert examples(tmp_path, "wizard", text) == WIZARD


def test_wizard_without_checked_sentence(tmp_path):
    records = published.wizard()
    for turn in records[0]["dialog"]:
        turn.pop("checked_sentence", None)
    assert all(example.background == () for example in examples(tmp_path, "wizard", json.dumps(records[:1])))
    records[1]["dialog"][1]["checked_sentence"] = {"a": None, "b": published.SENTENCE}  # as Parquet gives it
    assert examples(tmp_path, "wizard", json.dumps(records[1:]))[0].background == (published.SENTENCE,)


def test_wizard_that_speaks_twice_says_one_turn(tmp_path):
    records = published.wizard()[1:]
    records[0]["dialog"].insert(2, published.wizard_turn("1_Wizard", "Or twice.", published.SENTENCE))
    first = examples(tmp_path, "wizard", json.dumps(records))[0]
    assert first.references == ("Every day. Or twice.",) and first.background == (published.SENTENCE,)


def test_parquet_is_what_json_is(tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for spec, records, expected in (
        ("convai2", published.personachat(), PERSONA_CHAT),
        ("convai2", published.personachat_rows(), PERSONA_CHAT),
        ("wizard", published.wizard_hub(), WIZARD),
        ("wizard", published.wizard()[1:], WIZARD[3:]),
    ):
        parquet.write_table(arrow.Table.from_pylist(records), tmp_path / "x.parquet")
        assert examples(tmp_path, spec, (tmp_path / "x.parquet").read_bytes()) == expected
        with pytest.raises(ValueError, match="record 1: not readable as Parquet"):
            examples(tmp_path, spec, (tmp_path / "x.parquet").read_bytes()[:-50])


def test_a_conversation_has_one_split_in_every_version_of_it(tmp_path):
    """Either persona, either case, either speaker's view: what one version holds out, no other trains on."""
    said = [[(f"hi {i} , who are you ?", f"i am {i} ."), ("nice", "yes")] for i in range(60)]
    swapped = [[("__SILENCE__", a), (b, c)] for (a, b), (c, _) in said]
    owners = {}
    for name, text in {
        "self": published.convai2(conversations=said),
        "none": published.convai2("none", conversations=said),
        "json": json.dumps(published.personachat(said)),
        "rows": published.lines(published.personachat_rows(said)),
        "cased": published.convai2(conversations=said).replace("hi ", "Hi ").replace(" ,", ","),
        "swapped": published.convai2(conversations=swapped),
    }.items():
        (tmp_path / name).write_text(text)
        found = [(split, example) for split, example in stream_examples(f"convai2:{tmp_path / name}")]
        openings = [
            (split, example) for split, example in found if len(example.turns) == (2 if name == "swapped" else 1)
        ]
        owners[name] = [split for split, _ in openings]
    assert len(owners["self"]) == 60 and set(owners["self"]) == {"train", "tuning", "report"}
    assert all(splits == owners["self"] for splits in owners.values())


def spoken(*texts):
    return Conversation([Message(text, is_reply=True) for text in texts])


def test_replies_no_context_in_two_splits():
    found = list(replies(spoken("hi", f"number {i}", "hm", "yes", "no", "oh") for i in range(300)))
    homes = {}
    for split, example in found:
        homes.setdefault((example.background, example.turns), set()).add(split)
    assert all(len(splits) == 1 for splits in homes.values())
    assert homes[("hm", "yes", "no")[0:0], ("hi",)] and len({split for split, _ in found}) == 3


def test_replies_full_table_costs_examples_but_no_split(monkeypatch):
    """Two contexts of one slot: the later one's example may be lost, and no context comes into two splits."""
    monkeypatch.setattr(conversations, "SLOTS", 1)
    found = list(replies(spoken(f"a {i}", f"b {i}", "c") for i in range(50)))
    assert 0 < len(found) < 100 and len({split for split, _ in found}) == 1


def test_load_examples_stops_at_count(tmp_path):
    text = published.convai2(conversations=[published.EXCHANGES] * 3) + "nothing behind them is read\n"
    (tmp_path / "data").write_text(text)
    spec = f"convai2:{tmp_path / 'data'}"
    split = next(iter(stream_examples(spec)))[0]
    assert len(load_examples(spec, split, count=2)) == 2
    with pytest.raises(ValueError, match="line 13: expected a line that begins with 5"):
        load_examples(spec, split)


def test_wizard_conversations_keep_the_order(tmp_path):
    (tmp_path / "data").write_text(json.dumps(published.wizard() * 50))
    assert [len(c.messages) for c in wizard_conversations(tmp_path / "data")] == [5, 4] * 50
