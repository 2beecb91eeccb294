"""What check says: the right thing first, the likely mistake named, and nothing that stops a notebook."""

import json
import re

import pytest
import torch

from grpo_from_scratch.course import exercises, progress_file
from grpo_from_scratch.course.exercises import Case, Exercise, Mistake, Report, check, feedback, hint, solution, use


def centred(rewards, weight=1.0):
    """The reference."""
    return (rewards - rewards.mean(1, keepdim=True)) * weight


def over_everything(rewards, weight):
    return (rewards - rewards.mean()) * weight


def no_weight(rewards, weight):
    return rewards - rewards.mean(1, keepdim=True)


def crashes(rewards, weight):
    return rewards.average()


ROW = torch.tensor([[1.0, 2.0, 6.0]])
ROWS = torch.tensor([[0.0, 1.0], [4.0, 8.0]])
EXERCISE = Exercise(
    centred,
    "easy",
    10,
    cases=(
        Case({"rewards": ROW, "weight": 1.0}, "one group"),
        Case({"rewards": ROWS, "weight": 1.0}, "each row is a group"),
        Case({"rewards": ROWS, "weight": -2.0}, "a weight that is not 1"),
    ),
    hints=("one", "two", "three"),
    mistakes=(
        Mistake(over_everything, "the mean was taken over the whole batch"),
        Mistake(no_weight, "the weight is not used"),
        Mistake(crashes, "tensors have a mean, not an average"),
    ),
    gradients=("rewards",),
)


@pytest.fixture(autouse=True)
def course(monkeypatch, tmp_path):
    """A course of one exercise, and a data folder of its own."""
    monkeypatch.setattr(exercises, "lessons", lambda: iter([("01_first", (EXERCISE,))]))
    monkeypatch.setattr(exercises, "_hinted", {})
    monkeypatch.setenv("GRPO_DATA_DIR", str(tmp_path / "data"))


def in_place(rewards, weight):
    result = centred(rewards.detach().clone(), weight) + 0 * rewards
    rewards.data.zero_()
    return result


def test_feedback_passes_a_right_answer():
    report = feedback(EXERCISE, lambda r, w: w * r - w * r.mean(1, keepdim=True))
    assert report and repr(report) == "✓ centred: all 3 cases pass"


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (lambda r, w: None, "the result is None: is there a return statement?"),
        (lambda r, w: 3.0, "the result should be a tensor and is a float"),
        (lambda r, w: r.mean(1), "the result should have shape (1, 3) and has (1,)"),
        (lambda r, w: centred(r, w).double(), "the result should be torch.float32 and is torch.float64"),
        (lambda r, w: centred(r, w) / 0 * 0, "the result has NaN where a number is expected"),
        (
            lambda r, w: centred(r, w) + torch.tensor([0, 0, 9.0]),
            "the result is furthest off at index [0, 2]: 3 expected,",
        ),
        (in_place, "the input 'rewards' after the call is furthest off at index [0, 2]: 6 expected, 0 found"),
        (lambda r, w: centred(r.detach(), w), "the gradient by 'rewards' is furthest off"),
        (lambda r, w: r - r.mean(1, keepdim=True).detach(), "the gradient by 'rewards' is furthest off"),
    ],
)
def test_feedback_says_what_is_wrong(answer, complaint):
    report = feedback(EXERCISE, answer)
    assert report.status == "failed" and report.title == "centred: case 1 of 3 is wrong"
    assert report.body.startswith(complaint)


def test_feedback_shows_the_input_expected_and_got():
    body = feedback(EXERCISE, lambda r, w: r).body
    for part in ("This case: one group.", "rewards = tensor, float32, shape (1, 3)", "weight = 1.0"):
        assert part in body
    assert re.search(r"expected tensor.*\n.*-2\., -1\.,  3\.", body) and re.search(
        r"got +tensor.*\n.*1\., 2\., 6\.", body
    )


@pytest.mark.parametrize(
    ("answer", "case", "diagnosis"),
    [
        (over_everything, 2, "the mean was taken over the whole batch"),
        (no_weight, 3, "the weight is not used"),
        (lambda r, w: r.mean(1, keepdim=True).neg() + r, 3, "the weight is not used"),
        (crashes, 1, "tensors have a mean, not an average"),
    ],
)
def test_feedback_names_the_likely_mistake(answer, case, diagnosis):
    report = feedback(EXERCISE, answer)
    assert f"case {case} of 3" in report.title and f"Likely: {diagnosis}." in report.body


def test_feedback_does_not_guess_at_an_unknown_mistake():
    # in case 3 it does what over_everything does, but it got case 2 right, which over_everything does not
    report = feedback(EXERCISE, lambda r, w: over_everything(r, w) if w != 1 else centred(r, w))
    assert "case 3 of 3" in report.title
    assert "Likely" not in report.body and "hint(centred) helps" in report.body


def test_feedback_of_an_unfinished_answer():
    def centred(rewards, weight):
        raise NotImplementedError

    report = feedback(EXERCISE, centred)
    assert report.status == "todo" and "not started" in report.title and not report


def test_feedback_of_an_answer_that_raises_names_error_and_line():
    def centred(rewards, weight):
        return rewards.reshape(7)  # cannot be

    report = feedback(EXERCISE, centred)
    assert report.title == "centred: case 1 of 3 raised an error"
    assert "RuntimeError" in report.body and "at: return rewards.reshape(7)  # cannot be" in report.body


def test_feedback_of_numbers_and_containers():
    def summary(x):
        return {"mean": x.mean().item(), "ends": (x[0], "low"), "any": True}

    exercise = Exercise(summary, "easy", 5, (Case({"x": torch.tensor([1.0, 2.0])}, "two"),), ("", "", ""), ())
    good = {"mean": 1.5, "ends": (torch.tensor(1.0), "low"), "any": True}
    assert feedback(exercise, lambda x: good)
    for change, complaint in [
        ({"mean": 1.6}, "mean should be 1.5 and is 1.6"),
        ({"mean": float("nan")}, "mean has NaN"),
        ({"mean": True}, "mean should be a float and is a bool"),
        ({"mean": torch.tensor(1.5)}, "mean should be a float and is a Tensor"),
        ({"ends": (torch.tensor(1.0), "high")}, "item 1 of ends should be 'low' and is 'high'"),
        ({"ends": (torch.tensor(2.0), "low")}, "item 0 of ends should be 1 and is 2"),
        ({"ends": (torch.tensor(1.0),)}, "ends should have 2 items and has 1"),
        ({"any": 1}, "any should be a bool and is a int"),
        ({"more": 1}, "the result should have 3 items and has 4"),
    ]:
        assert feedback(exercise, lambda x, change=change: good | change).body.startswith(complaint)


@pytest.mark.parametrize(
    ("want", "got", "complaint"),
    [
        (torch.tensor([True, False]), torch.tensor([True, True]), "index [1]: 0 expected, 1 found"),
        (torch.tensor([2, 3]), torch.tensor([2, 4]), "index [1]: 3 expected, 4 found"),
        (torch.tensor(1.0), torch.tensor(torch.inf), "should be 1 and is inf"),
        (1.0, 1.0 + 1e-7, "should be 1 and is 1"),
    ],
)
def test_feedback_of_any_dtype(want, got, complaint):
    exercise = Exercise(lambda: want, "easy", 5, (Case({}, "no inputs"),), ("", "", ""), (), rtol=0, atol=1e-9)
    assert feedback(exercise, lambda: want) and complaint in feedback(exercise, lambda: got).body


def test_check_keeps_progress_and_only_for_right_answers():
    def centred(rewards, weight):
        return over_everything(rewards, weight)

    assert not check(centred) and progress_file.solved() == {}
    assert exercises.progress().title == "0 of 1 exercises solved; the others take about 10 minutes"
    right = type(centred)(EXERCISE.solution.__code__, globals(), "centred")
    assert check(right) and set(progress_file.solved()) == {"centred"}
    assert exercises.progress().title == "1 of 1 exercises solved; the others take about 0 minutes"
    assert "✓ centred" in exercises.progress().body
    progress_file.path().write_text('{"centred": "1999-12-31T23:59:59"}')
    assert check(right) and progress_file.solved() == {"centred": "1999-12-31T23:59:59"}


def test_check_refuses_the_reference():
    assert not check(EXERCISE.solution) and progress_file.solved() == {}


@pytest.mark.parametrize("kept", ["{torn", "[1]"])
def test_check_tells_when_progress_cannot_be_kept(kept):
    def centred(rewards, weight):
        return EXERCISE.solution(rewards, weight)

    progress_file.path().parent.mkdir()
    progress_file.path().write_text(kept)
    report = check(centred)
    assert report and "could not be kept" in report.body and "mend it or delete it" in report.body
    assert progress_file.path().read_text() == kept  # someone's record is not thrown away
    with pytest.raises(ValueError, match="mend it or delete it"):
        exercises.progress()


def test_progress_is_kept_in_the_users_data_folder(monkeypatch):
    monkeypatch.delenv("GRPO_DATA_DIR")
    assert "grpo_from_scratch" in progress_file.path().parts and progress_file.path().is_absolute()


def test_progress_file_is_whole_json(tmp_path):
    progress_file.record("a")
    progress_file.record("b")
    assert set(json.loads(progress_file.path().read_text())) == {"a", "b"}
    assert [file.name for file in progress_file.path().parent.iterdir()] == ["progress.json"]


def test_hint_goes_on_and_stops_at_the_last():
    shown = [hint(centred) for _ in range(4)]
    assert [report.body for report in shown] == ["one", "two", "three", "three"]
    assert hint("centred", 1).body == "one" and hint(centred).body == "two"


def test_solution_shows_the_source():
    assert "rewards.mean(1, keepdim=True)" in solution("centred").body


def test_use_takes_the_learners_function_only_when_it_passes(capsys):
    def centred(rewards, weight):
        return rewards

    assert use(centred) is EXERCISE.solution
    assert capsys.readouterr().out == "centred is not solved yet: the cells below use the reference.\n"
    right = type(centred)(EXERCISE.solution.__code__, globals(), "centred")
    assert use(right) is right and capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (torch.zeros(2), TypeError, "give the function itself, as in check\\(my_function\\), not a Tensor"),
        ("centered", LookupError, "no exercise is called 'centered'; did you mean 'centred'"),
        ("x", LookupError, "no exercise is called 'x'$"),
    ],
)
def test_find_says_what_is_wrong(answer, error, message):
    with pytest.raises(error, match=message):
        exercises.find(answer)


def test_report_is_html_in_a_notebook():
    shown = Report("failed", "a < b", "x = <1>")._repr_html_()
    assert "a &lt; b" in shown and "<pre" in shown and "x = &lt;1&gt;" in shown and "✗" in shown
