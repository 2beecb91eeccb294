"""Exercises a learner checks inside the notebook.

    check(my_function)      says whether it is right and, if not, what is wrong and the likely mistake
    hint(my_function)       three of them, each more direct than the one before
    solution(my_function)   one way to write it
    use(my_function)        the learner's function where it passes, the reference otherwise, for the cells after it
    progress()              what is solved over the course

The exercise is found by the function's name. An answer that still raises NotImplementedError is "not started" and a
wrong one is reported, not raised, so a notebook runs to its end whatever its exercises say.
"""

import copy
import difflib
import html
import importlib
import inspect
import pkgutil
import textwrap
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from grpo_from_scratch.course import bank, progress_file

EXERCISE_TAG = "exercise:"  # followed by the name of the function its cell is to define


@dataclass(frozen=True)
class Case:
    """One call of the function: its inputs by name, in the order of its parameters, and why this call is tried."""

    inputs: dict[str, Any]
    why: str


@dataclass(frozen=True)
class Mistake:
    """A known wrong answer, and what to tell someone whose function does the same."""

    answer: Callable
    diagnosis: str


@dataclass(frozen=True)
class Exercise:
    """What ``check`` needs to know. The task itself is told in the notebook.

    ``gradients`` names inputs by which the result is differentiated too, for exercises where values can be right and
    the gradient wrong.
    """

    solution: Callable
    difficulty: str  # easy | medium | hard
    minutes: int
    cases: tuple[Case, ...]
    hints: tuple[str, str, str]
    mistakes: tuple[Mistake, ...]
    gradients: tuple[str, ...] = ()
    rtol: float = 1e-4
    atol: float = 1e-6

    @property
    def name(self) -> str:
        return self.solution.__name__


class Report:
    """An answer to the learner: rich in a notebook, plain in a terminal; truthy when the exercise is solved."""

    MARKS = {"passed": "✓", "failed": "✗", "todo": "…", "info": "?"}
    COLOURS = {"passed": "#15803d", "failed": "#d32f2f", "todo": "#767676", "info": "#2672c9"}  # on light and on dark

    def __init__(self, status: str, title: str, body: str = ""):
        self.status, self.title, self.body = status, title, body

    def __bool__(self) -> bool:
        return self.status == "passed"

    def __repr__(self) -> str:
        head = f"{self.MARKS[self.status]} {self.title}"
        return head + ("\n" + textwrap.indent(self.body, "    ") if self.body else "")

    def _repr_html_(self) -> str:
        colour, mark = self.COLOURS[self.status], self.MARKS[self.status]
        body = f"<pre style='margin:.4em 0 0;background:none'>{html.escape(self.body)}</pre>" if self.body else ""
        return (
            f"<div style='border-left:4px solid {colour};padding:.2em .8em'>"
            f"<b style='color:{colour}'>{mark} {html.escape(self.title)}</b>{body}</div>"
        )


def check(answer: Callable) -> Report:
    """Try the learner's function on every case of its exercise, and keep the progress when all pass."""
    exercise = find(answer)
    if answer is exercise.solution:
        return Report("failed", f"{exercise.name}: this is the reference, not yours", "Run your own cell again.")
    report = feedback(exercise, answer)
    if report:
        try:
            progress_file.record(exercise.name)
        except (OSError, ValueError) as error:
            report.body = f"Your progress could not be kept: {error}"
    return report


def hint(answer: Callable | str, level: int | None = None) -> Report:
    """The next hint for this exercise; ``hint(answer, 1)`` starts over."""
    exercise = find(answer)
    level = level or _hinted.get(exercise.name, 0) + 1
    level = min(max(level, 1), len(exercise.hints))
    _hinted[exercise.name] = level
    return Report("info", f"{exercise.name}: hint {level} of {len(exercise.hints)}", exercise.hints[level - 1])


_hinted: dict[str, int] = {}


def solution(answer: Callable | str) -> Report:
    """The source of the reference solution."""
    exercise = find(answer)
    return Report("info", f"{exercise.name}: one solution", inspect.getsource(exercise.solution).rstrip())


def use(answer: Callable) -> Callable:
    """``answer`` if it passes, else the reference, and a line that says so. Bind the result to another name."""
    exercise = find(answer)
    if feedback(exercise, answer):
        return answer
    print(f"{exercise.name} is not solved yet: the cells below use the reference.")
    return exercise.solution


def progress() -> Report:
    """What is solved over the course, as kept on this machine."""
    solved, lines, left = progress_file.solved(), [], []
    total = 0
    for notebook, exercises in lessons():
        lines.append(notebook)
        total += len(exercises)
        for exercise in exercises:
            if exercise.name not in solved:
                left.append(exercise.minutes)
            mark = "✓" if exercise.name in solved else "·"
            lines.append(f"  {mark} {exercise.name:<32} {exercise.difficulty:<6} {exercise.minutes:>3} minutes")
    title = f"{total - len(left)} of {total} exercises solved; the others take about {sum(left)} minutes"
    return Report("info", title, "\n".join(lines))


def lessons() -> Iterator[tuple[str, tuple[Exercise, ...]]]:
    """Every notebook that has exercises, in order: its name (``01_policy_gradient``) and its exercises."""
    for module in sorted(pkgutil.iter_modules(bank.__path__), key=lambda module: module.name):
        yield module.name.removeprefix("nb"), importlib.import_module(f"{bank.__name__}.{module.name}").EXERCISES


def find(answer: Callable | str) -> Exercise:
    """The exercise of this function, or of this name.

    Raises:
        TypeError: ``answer`` is neither a function nor a name.
        LookupError: there is no such exercise; the message names the nearest.
    """
    name = answer if isinstance(answer, str) else getattr(answer, "__name__", None)
    if name is None:
        raise TypeError(f"give the function itself, as in check(my_function), not a {type(answer).__name__}")
    names = []
    for _, exercises in lessons():  # stops at the first hit, so that notebook 01 does not import what 14 needs
        for exercise in exercises:
            if exercise.name == name:
                return exercise
            names.append(exercise.name)
    near = difflib.get_close_matches(name, names, 1)
    raise LookupError(f"no exercise is called {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


# ---------------------------------------------------------------- what check does


def feedback(exercise: Exercise, answer: Callable) -> Report:
    """The first thing that is wrong with ``answer``, or that nothing is."""
    for number, case in enumerate(exercise.cases, 1):
        title = f"{exercise.name}: case {number} of {len(exercise.cases)}"
        inputs = "\n".join(f"{name} = {show(value)}" for name, value in case.inputs.items())
        about = f"This case: {case.why}.\n{inputs}"
        expected = outcome(exercise, exercise.solution, case)
        try:
            got = outcome(exercise, answer, case)
        except NotImplementedError:
            body = f"Write it, run its cell, check again. {helps(exercise)}"
            return Report("todo", f"{exercise.name}: not started", body)
        except Exception as error:
            likely = diagnosis(exercise, answer, number)
            where = f" at: {line}" if (line := line_of(error, answer)) else ""
            body = f"{type(error).__name__}: {error}{where}\n{likely}\n{about}"
            return Report("failed", f"{title} raised an error", body)
        if problem := difference(got, expected, exercise):
            likely = diagnosis(exercise, answer, number)
            values = f"expected {show(expected['the result'])}\ngot      {show(got['the result'])}"
            return Report("failed", f"{title} is wrong", f"{problem}.\n{likely}\n{about}\n{values}")
    return Report("passed", f"{exercise.name}: all {len(exercise.cases)} cases pass")


def helps(exercise: Exercise) -> str:
    return f"hint({exercise.name}) helps."


def diagnosis(exercise: Exercise, answer: Callable, number: int) -> str:
    """The known mistake that does the same as ``answer`` in the first ``number`` cases, if there is one."""
    for mistake in exercise.mistakes:
        if all(same(exercise, answer, mistake.answer, case) for case in exercise.cases[:number]):
            return f"Likely: {mistake.diagnosis}."
    return helps(exercise)


def same(exercise: Exercise, one: Callable, other: Callable, case: Case) -> bool:
    """Whether two answers end alike: the same values and gradients, or the same kind of error."""
    ends = []
    for answer in (one, other):
        try:
            ends.append(outcome(exercise, answer, case))
        except Exception as error:
            ends.append(type(error))
    if isinstance(ends[0], dict) and isinstance(ends[1], dict):
        return difference(*ends, exercise) is None
    return ends[0] is ends[1]


def outcome(exercise: Exercise, answer: Callable, case: Case) -> dict[str, Any]:
    """What a call leaves behind: its result, its inputs if it changed them, and the gradients the exercise asks for."""
    inputs = {name: copied(value, name in exercise.gradients) for name, value in case.inputs.items()}
    result = answer(*inputs.values())
    left = {"the result": result}
    for name, value in case.inputs.items():
        left[f"the input {name!r} after the call"] = inputs[name] if isinstance(value, torch.Tensor) else value
    leaves = [inputs[name] for name in exercise.gradients]
    slopes = [None] * len(leaves)
    if leaves and isinstance(result, torch.Tensor) and result.requires_grad:
        # different weights for the elements, so that a gradient in the wrong place shows
        weights = torch.linspace(1, 2, result.numel(), dtype=result.dtype).view(result.shape)
        slopes = torch.autograd.grad((result * weights).sum(), leaves, allow_unused=True)
    for name, slope, leaf in zip(exercise.gradients, slopes, leaves, strict=True):
        left[f"the gradient by {name!r}"] = torch.zeros_like(leaf) if slope is None else slope
    return left


def copied(value: Any, differentiate: bool) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(differentiate)
    return value if callable(value) else copy.deepcopy(value)


def difference(got: Any, want: Any, exercise: Exercise, what: str = "") -> str | None:
    """None when they agree, else the first thing that is wrong, the most basic first."""
    if isinstance(want, dict) and isinstance(got, dict) and set(want) == set(got):
        pairs = [(got[key], want[key], str(key)) for key in want]
    elif isinstance(want, tuple | list) and type(got) is type(want) and len(got) == len(want):
        pairs = [(g, w, f"item {index} of {what}") for index, (g, w) in enumerate(zip(got, want, strict=True))]
    else:
        return leaf_difference(got, want, exercise, what)
    return next((problem for g, w, name in pairs if (problem := difference(g, w, exercise, name))), None)


def leaf_difference(got: Any, want: Any, exercise: Exercise, what: str) -> str | None:
    """``difference`` for two values that are not both containers of the same kind."""
    if got is None and want is not None:
        return f"{what} is None: is there a return statement?"
    number = isinstance(want, int | float) and not isinstance(want, bool)
    if number and isinstance(got, int | float) and not isinstance(got, bool):
        got, want = torch.tensor(got, dtype=torch.float64), torch.tensor(want, dtype=torch.float64)
    if isinstance(want, torch.Tensor):
        if not isinstance(got, torch.Tensor):
            return f"{what} should be a tensor and is a {type(got).__name__}"
        if got.shape != want.shape:
            return f"{what} should have shape {tuple(want.shape)} and has {tuple(got.shape)}"
        if got.dtype != want.dtype:
            return f"{what} should be {want.dtype} and is {got.dtype}"
        return value_difference(got.detach(), want.detach(), exercise, what)
    if type(got) is not type(want):
        return f"{what} should be a {type(want).__name__} and is a {type(got).__name__}"
    if isinstance(want, tuple | list | dict) and len(got) != len(want):
        return f"{what} should have {len(want)} items and has {len(got)}"
    return None if got == want else f"{what} should be {want!r} and is {got!r}"


def value_difference(got: torch.Tensor, want: torch.Tensor, exercise: Exercise, what: str) -> str | None:
    """``difference`` for two tensors of one shape and dtype."""
    if (got.isnan() & ~want.isnan()).any():
        return f"{what} has NaN where a number is expected"
    got, want = got.double(), want.double()  # so that bool and integers can be subtracted
    if torch.allclose(got, want, rtol=exercise.rtol, atol=exercise.atol, equal_nan=True):
        return None
    if got.ndim == 0:
        return f"{what} should be {want.item():.6g} and is {got.item():.6g}"
    off = (got - want).abs().nan_to_num(nan=torch.inf)
    at = tuple(int(i) for i in torch.unravel_index(off.argmax(), off.shape))
    return f"{what} is furthest off at index {list(at)}: {want[at].item():.6g} expected, {got[at].item():.6g} found"


def show(value: Any) -> str:
    """A value as a learner should see it."""
    if isinstance(value, torch.Tensor):
        kind = f"{str(value.dtype).removeprefix('torch.')}, shape {tuple(value.shape)}"
        return f"tensor, {kind}\n" + textwrap.indent(str(value.detach()), "    ")
    if callable(value):
        return value.__doc__ or value.__name__
    return repr(value)


def line_of(error: Exception, answer: Callable) -> str | None:
    """The line of the learner's function that raised."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.name == getattr(answer, "__name__", "")]
    return frames[-1].line if frames else None
