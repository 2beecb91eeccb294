"""Every notebook against its exercises: what the cells say is what the bank holds, and every answer is judged right."""

import ast
import inspect
import re
from pathlib import Path

import nbformat
import pytest

from grpo_from_scratch.course.exercises import EXERCISE_TAG, feedback, hint, lessons, solution
from grpo_from_scratch.course.notebooks import execute

NOTEBOOKS = {path.stem: path for path in sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))}
LESSONS = dict(lessons())
EXERCISES = [exercise for exercises in LESSONS.values() for exercise in exercises]
MISTAKES = [(exercise, mistake) for exercise in EXERCISES for mistake in exercise.mistakes]


def stubs(name: str) -> dict[str, tuple[str, str]]:
    """The cells to complete: {exercise: (source, the markdown before it)}."""
    cells = nbformat.read(NOTEBOOKS[name], as_version=4).cells
    found = {}
    for before, cell in zip([None, *cells], cells, strict=False):
        for tag in cell.metadata.get("tags", []):
            if tag.startswith(EXERCISE_TAG):
                found[tag.removeprefix(EXERCISE_TAG)] = (cell.source, before.source)
    return found


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_solution_passes(exercise):
    report = feedback(exercise, exercise.solution)
    assert report, report


@pytest.mark.parametrize(
    ("exercise", "mistake"), MISTAKES, ids=lambda item: getattr(item, "name", None) or item.answer.__name__
)
def test_mistake_is_caught_with_its_diagnosis(exercise, mistake):
    report = feedback(exercise, mistake.answer)
    assert report.status == "failed" and f"Likely: {mistake.diagnosis}." in report.body


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)
def test_exercise_is_complete(exercise):
    assert len(exercise.mistakes) >= 2 and len(exercise.cases) >= 2 and len(set(exercise.hints)) == 3
    assert exercise.difficulty in ("easy", "medium", "hard") and 5 <= exercise.minutes <= 30
    for case in exercise.cases:
        assert list(case.inputs) == list(inspect.signature(exercise.solution).parameters)
    assert hint(exercise.name, 1) is not None and exercise.name in solution(exercise.name).body


def test_names_are_unique_over_the_course():
    names = [exercise.name for exercise in EXERCISES]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", sorted(set(NOTEBOOKS) | set(LESSONS)))
def test_notebook_and_bank_agree(name):
    assert list(stubs(name)) == [exercise.name for exercise in LESSONS[name]]


@pytest.mark.parametrize(
    ("name", "exercise"),
    [(name, exercise) for name, exercises in LESSONS.items() for exercise in exercises],
    ids=lambda item: getattr(item, "name", item),
)
def test_stub_is_to_be_done_and_says_what_it_takes(name, exercise):
    source, told = stubs(name)[exercise.name]
    [function] = ast.parse(source).body
    assert [argument.arg for argument in function.args.args] == list(inspect.signature(exercise.solution).parameters)
    assert ast.get_docstring(function)
    namespace = {}
    exec(source, namespace)
    assert feedback(exercise, namespace[exercise.name]).status == "todo"
    assert re.match(rf"### Exercise \d: .+ \({exercise.difficulty}, {exercise.minutes} minutes\)\n", told)
    assert "**Why it matters.**" in told and f"`hint({exercise.name})`" in told


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook_has_a_live_control(name):
    outputs = [
        output for cell in nbformat.read(NOTEBOOKS[name], as_version=4).cells for output in cell.get("outputs", [])
    ]
    assert any(output.get("data", {}).get("text/plain", "").startswith("slider at") for output in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_solved_notebook_runs_to_its_end(name):
    notebook = nbformat.read(NOTEBOOKS[name], as_version=4)
    for cell in notebook.cells:
        for tag in cell.metadata.get("tags", []):
            if tag.startswith(EXERCISE_TAG):
                exercise = tag.removeprefix(EXERCISE_TAG)
                cell.source = (
                    "from grpo_from_scratch.course.exercises import find\n"
                    f"def {exercise}(*inputs): return find({exercise!r}).solution(*inputs)"
                )
    execute(notebook, NOTEBOOKS[name].parent)
    shown = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "use the reference" not in shown
