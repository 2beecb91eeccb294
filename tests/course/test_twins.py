"""Every twin in every notebook, and the comparison itself: drift of any kind is found, and named."""

import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest
import torch
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook

from twins import Drift, Inputs, compare, declarations, tensors, twins_of

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
TWINS = [twin for path in NOTEBOOKS for twin in twins_of(path)]


@pytest.mark.parametrize("twin", TWINS, ids=str)
def test_twin(twin):
    found = declarations()
    assert twin.target in found, f"{twin}: declare its inputs in tests/course/twin_inputs/"
    compare(twin, found[twin.target])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_a_twin(path):
    assert list(twins_of(path))


def test_every_declaration_is_used():
    assert set(declarations()) == {twin.target for twin in TWINS}


# ---------------------------------------------------------------- the comparison itself

SCALED = Inputs(st.fixed_dictionaries({"x": tensors(2), "factor": st.floats(0, 4, width=32)}), gradients=("x",))


@pytest.fixture
def drift(tmp_path, monkeypatch):
    """Compares ``scaled`` written in a notebook's last cell with this package's; returns the complaint, "" if none."""
    package = ModuleType("package_of_twins")
    package.scaled = lambda x, factor: torch.where(x > 0, x * factor, 0.0)
    monkeypatch.setitem(sys.modules, "package_of_twins", package)

    def run(*sources, tag="twin:package_of_twins.scaled", inputs=SCALED):
        cells = [new_code_cell(source) for source in sources]
        cells[-1].metadata.tags = [tag]
        nbformat.write(new_notebook(cells=cells), tmp_path / "07_scaling.ipynb")
        [twin] = twins_of(tmp_path / "07_scaling.ipynb")
        try:
            compare(twin, inputs)
        except Drift as complaint:
            assert "07_scaling.ipynb, code cell " + str(len(sources)) in str(complaint)
            return str(complaint)
        return ""

    return run


RIGHT = "def scaled(x, factor):\n    return torch.where(x > 0, x, 0.0) * factor"


def test_compare_runs_definitions_imports_and_constants_only(drift):
    first = "import torch\n1 / 0\nundefined.attribute = None\nundefined[0] = 1"
    helper = "LOW = 0\ndef cut(x):\n    return torch.where(x > LOW, x, 0.0)\nprint(undefined)"
    twin = "def scaled(x, factor):\n    return cut(x) * factor\nscaled(undefined)"
    assert drift(first, helper, twin) == ""


def test_compare_names_the_smallest_input(drift):
    # right below 1, so the smallest differing input is a single 1
    complaint = drift("import torch", RIGHT + " + 1.0 * (x >= 1)")
    assert "smallest differing input:\n  x = tensor([0., 1.])\n  factor = 0.0" in complaint
    assert "the result differs" in complaint


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("torch.where(x > 0, x.detach(), 0.0) * factor", "the gradient by x differs"),
        ("torch.where(x > 0, x, 0.0) * factor + x - x.detach()", "the gradient by x differs"),
        ("torch.where(x > 0, x, 0.0) * -factor", "differs"),
        ("(torch.where(x > 0, x, 0.0) * factor).double()", "float64 != torch.float32"),
        ("(torch.where(x > 0, x, 0.0) * factor)[None]", "the result differs"),
        ("1, torch.where(x > 0, x, 0.0) * factor", "it returns"),
        ("None", "NoneType"),
        ("x.nothing", "by hand it raises AttributeError"),
    ],
)
def test_compare_finds(drift, body, complaint):
    assert complaint in drift("import torch", f"def scaled(x, factor):\n    return {body}")


def test_compare_finds_a_gradient_at_the_wrong_element(drift):
    body = "x * factor + (x - x.detach()).flip(0) * factor - (x - x.detach()) * factor"
    positive = Inputs(st.fixed_dictionaries({"x": tensors(2, low=1.0), "factor": st.just(1.0)}), gradients=("x",))
    source = f"def scaled(x, factor):\n    return {body}"
    assert "the gradient by x differs" in drift("import torch", source, inputs=positive)


def test_compare_finds_a_cell_without_the_function(drift):
    assert "defines no scaled" in drift(RIGHT, "other = 1")


def test_compare_finds_a_target_that_is_gone(drift):
    assert "no such thing" in drift("import torch", RIGHT.replace("scaled", "f"), tag="twin:package_of_twins.f")


def test_compare_nan_equals_nan(drift):
    nan = Inputs(st.just({"x": torch.tensor([torch.nan, 1.0]), "factor": 1.0}))
    hand = "def scaled(x, factor):\n    return torch.where(x > 0, x, 0.0) + 0 * x.nan_to_num()"
    assert drift("import torch", hand, inputs=nan) == ""
