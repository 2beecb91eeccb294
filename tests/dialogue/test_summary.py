import pytest

from grpo_from_scratch.dialogue.corpus import embedded_dialogues
from grpo_from_scratch.dialogue.dataset import Example
from grpo_from_scratch.dialogue.summary import broken_characters, spread, summarise, to_json
from grpo_from_scratch.policy.loading import new_tiny_policy

HI = Example(("hi",), ("hello you there",), background=("i fish .",))


def summary_of(*examples: Example, tokenizer=None):
    return summarise({"train": list(examples), "tuning": [], "report": []}, tokenizer)


def test_summarise_counts_by_hand():
    found = summary_of(
        Example(
            ("hi , you !", "yes ?", "how are you ?"), ("fine", "very well thanks"), background=("i fish .", "i ski .")
        ),
        Example(("hi",), ("reference",), responses=("a response of words", "fine")),
    )
    assert found.examples == {"train": 2, "tuning": 0, "report": 0}
    assert found.lengths["train"] == {
        "turns": [3, 1],
        "words of background": [4, 0],
        "words of turns": [6, 1],
        "words of a reply": [1, 3, 4, 1],
    }
    assert found.common[0] == ("fine", 2)
    flags = {name: (flag.found, flag.among) for name, flag in found.flags.items()}
    assert flags["replies under 3 or over 40 words"] == (2, 4)
    assert flags["dialogues without background"] == (1, 2)


def test_summarise_tokens_are_of_whole_prompts_and_replies():
    tokenizer = new_tiny_policy(["hi hello you there i fish"], hidden_size=8, layers=1, heads=1)[1]
    found = summary_of(HI, Example(("what is this",), ("hi",)), tokenizer=tokenizer)
    # <bos> i fish <unk> <user> hi <bot>, and <bos> <user> 3 words <bot>
    assert found.lengths["train"]["tokens of a prompt"] == [7, 6]
    assert found.lengths["train"]["tokens of a reply"] == [4, 2]
    assert found.flags["prompts with words that the tokenizer does not know"].found == 2


def test_summarise_finds_what_the_corpus_was_made_with():
    """The embedded replies are 20 % generic and 15 % with a wrong fact, by construction."""
    flags = summarise({"train": embedded_dialogues("train", count=1500)}).flags
    assert flags["replies that answer everything"].share == pytest.approx(0.20, abs=0.02)
    assert flags["replies with another dialogue's facts"].share == pytest.approx(0.15, abs=0.02)
    assert flags["broken characters"].found == flags["dialogues without background"].found == 0


def test_summarise_contexts_and_replies_that_stood_before():
    other = Example(HI.turns, ("another reply to it",), HI.background)
    flags = summary_of(HI, HI, other, Example(HI.turns, HI.references)).flags
    assert flags["contexts that stood before"].found == 2
    assert flags["replies that stood before, context and all"].found == 1


@pytest.mark.parametrize(
    "text", ["é", "naïve café", "你好 😊", "Straße", "“quoted”", "Ã", "£100", "Â", "ÀÉ", "a\tb\nc"]
)
def test_broken_characters_leaves_whole_text_alone(text):
    assert broken_characters()(Example((text,), (text,)), text) is None


@pytest.mark.parametrize("text", ["é", "你好", "😊", "it’s", "“quoted”", "Zürich"])
@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
def test_broken_characters_finds_text_decoded_wrongly(text, encoding):
    try:
        broken = "so " + text.encode().decode(encoding) + " it is"
    except UnicodeDecodeError:
        pytest.skip("this encoding has no character for a byte of it")
    assert broken_characters()(Example(("hi",), (broken,)), broken)
    assert broken_characters()(Example((broken,), ("fine",)), "fine"), "a context counts too"


@pytest.mark.parametrize("text", ["a\ufffdb", "a\0b", "\x1b[31mred"])
def test_broken_characters_finds_lost_bytes_and_controls(text):
    assert broken_characters()(Example(("hi",), (text,)), text) == "holds a control or replacement character"


def test_spread_by_hand():
    assert spread(range(101)) == (50, 95, 100)
    assert spread([3]) == (3, 3, 3) and spread([]) == (0, 0, 0)


def test_to_json_of_nothing_in_a_split():
    made = to_json(summary_of(HI))
    assert made["lengths"]["report"]["turns"] == {"median": 0, "95 %": 0, "longest": 0}
    assert made["flags"]["dialogues without background"] == {"found": 0, "among": 1, "first": ""}
