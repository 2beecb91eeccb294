import pytest

from grpo_from_scratch.dialogue.dataset import Example
from grpo_from_scratch.dialogue.summary import summarise
from grpo_from_scratch.evaluation.data_figure import data_figure


def figure_of(*replies: str):
    examples = [Example(("hi",), (reply,)) for reply in replies]
    return data_figure(summarise({"train": examples, "tuning": examples[:1], "report": []}), "jsonl:x")


def panel(figure, title):
    return next(axes for axes in figure.axes if axes.get_title(loc="left") == title)


def test_data_figure_shows_each_split_as_shares_of_its_own():
    axes = panel(figure_of("one", "one two", "one two", "one two three"), "words of a reply")
    train, tuning, report = (stairs.get_data() for stairs in axes.patches)
    assert train.values.tolist() == [0.25, 0.5, 0.25] and train.edges.tolist() == [0.5, 1.5, 2.5, 3.5]
    assert tuning.values.tolist() == [1, 0, 0] and report.values.tolist() == [0, 0, 0]
    assert axes.get_xlabel() == ""


def test_data_figure_puts_the_longest_into_the_last_bar():
    axes = panel(figure_of(*["a b"] * 300, "a " * 900), "words of a reply")
    assert axes.get_xlabel() == "the last bar goes on to 900"
    assert axes.patches[0].get_data().values.sum() == pytest.approx(1)


def test_data_figure_shows_every_flag():
    figure = figure_of("ok", "a reply of five words")  # and "ok" once more, for tuning
    axes = panel(figure, "what is doubtful")
    bars = dict(zip([label.get_text() for label in axes.get_yticklabels()], axes.patches, strict=True))
    assert bars["replies under 3 or over 40 words"].get_width() == pytest.approx(2 / 3)
    assert bars["dialogues without background"].get_width() == 1
