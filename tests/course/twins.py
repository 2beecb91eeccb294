"""Twins: functions written by hand in a notebook, compared with the package's on random inputs.

A cell that defines ``f`` and carries the tag ``twin:grpo_from_scratch.objective.kl.f`` promises that its ``f`` does
what the package's does. ``twin_inputs/`` says, once for each function of the package, how inputs for it are made.
"""

import ast
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import twin_inputs

KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Inputs:
    """How a function is called: keyword arguments drawn by ``strategy``.

    Results and, by every argument named in ``gradients``, gradients must agree. ``call`` says how to exercise what is
    not simply called (a class, say): it gets the object and the arguments.
    """

    strategy: st.SearchStrategy[dict[str, Any]]
    gradients: tuple[str, ...] = ()
    call: Callable[[Any, dict[str, Any]], Any] = field(default=lambda function, arguments: function(**arguments))
    rtol: float = 1e-5
    atol: float = 1e-6


@dataclass(frozen=True)
class Twin:
    """A tagged cell: the ``number``-th code cell of ``notebook`` defines what ``target`` names."""

    notebook: Path
    number: int
    target: str
    cells: tuple[str, ...]  # sources of the code cells up to this one

    def __str__(self) -> str:
        return f"{self.notebook.name}, code cell {self.number}: {self.target}"


class Drift(AssertionError):
    """A twin that does not do what its target does."""


def tensors(*shape: int, low: float = -3.0, high: float = 3.0) -> st.SearchStrategy[torch.Tensor]:
    """float32 tensors of this shape with elements in [low, high]; they shrink towards zeros."""
    elements = st.floats(low, high, width=32, allow_subnormal=False)
    # fill=nothing: else elements share a value, and one wrong element shrinks to a tensor full of it
    return hnp.arrays(np.float32, shape, elements=elements, fill=st.nothing()).map(torch.from_numpy)


def masks(rows: int, columns: int) -> st.SearchStrategy[torch.Tensor]:
    """bool (rows, columns): each row real up to some length, perhaps 0, and padding after it."""
    lengths = st.lists(st.integers(0, columns), min_size=rows, max_size=rows)
    return lengths.map(lambda ends: torch.arange(columns) < torch.tensor(ends)[:, None])


def declarations() -> dict[str, Inputs]:
    """Every declaration in ``twin_inputs/``, by the function's full name."""
    found = {}
    for module in pkgutil.iter_modules(twin_inputs.__path__):
        found |= importlib.import_module(f"twin_inputs.{module.name}").INPUTS
    return found


def twins_of(path: Path) -> Iterator[Twin]:
    """The twins in a notebook, in order."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    for number, cell in enumerate(cells, 1):
        for tag in cell.metadata.get("tags", []):
            if tag.startswith("twin:"):
                yield Twin(path, number, tag.removeprefix("twin:"), tuple(c.source for c in cells[:number]))


def by_hand(twin: Twin) -> Any:
    """The hand-written definition: that of the tagged cell, with the notebook's definitions and imports so far.

    Nothing else runs, so a twin needs no cell that computes; a constant it uses is a literal (``EPS = 1e-4``).
    """
    namespace = {"__name__": twin.notebook.stem}
    for number, source in enumerate(twin.cells, 1):
        body = [node for node in ast.parse(source).body if isinstance(node, KEPT) or is_constant(node)]
        code = compile(ast.Module(body, []), f"{twin.notebook.name}, code cell {number}", "exec")
        exec(code, namespace)
    name = twin.target.rpartition(".")[2]
    if not any(getattr(node, "name", None) == name for node in body):
        raise Drift(f"{twin}\nthe cell defines no {name}: a twin has its target's name")
    return namespace[name]


def is_constant(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign) or any(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets):
        return False  # a change to an object made by a cell that computes is no constant
    try:
        ast.literal_eval(node.value)
    except ValueError:
        return False
    return True


def hardened(twin: Twin) -> Any:
    """What the tag names in the package."""
    module, _, name = twin.target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise Drift(f"{twin}\nthe package has no such thing: {error}") from None


def compare(twin: Twin, inputs: Inputs) -> None:
    """Try both on random inputs.

    Raises:
        Drift: naming notebook, cell and the smallest input hypothesis found where they differ.
    """
    hand, package = by_hand(twin), hardened(twin)

    @settings(
        deadline=None,
        max_examples=30,
        derandomize=True,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(inputs.strategy)
    def run(arguments):
        expected = outcome(package, inputs, arguments)
        try:
            got = outcome(hand, inputs, arguments)
            problem = difference(got, expected, inputs)
        except Exception as error:
            problem = f"by hand it raises {type(error).__name__}: {error}"
        if problem:
            lines = "\n".join(f"  {name} = {value!r}" for name, value in arguments.items())
            raise Drift(
                f"{twin}\nis not what the cell computes: {problem}\nsmallest differing input:\n{lines}"
            ) from None

    run()


def outcome(function: Any, inputs: Inputs, arguments: dict[str, Any]) -> dict[str, Any]:
    """The results of a call, flattened, and the gradients of a weighted sum of them."""
    copies = {name: copied(value, name in inputs.gradients) for name, value in arguments.items()}
    results = dict(flattened(inputs.call(function, copies), "the result"))
    outputs = [value for value in results.values() if isinstance(value, torch.Tensor) and value.requires_grad]
    # weights that differ between elements, so that a gradient in the wrong place shows
    total = sum((out * torch.linspace(1, 2, out.numel()).view(out.shape)).sum() for out in outputs)
    for name in inputs.gradients:
        slope = torch.autograd.grad(total, copies[name], retain_graph=True, allow_unused=True)[0] if outputs else None
        results[f"the gradient by {name}"] = torch.zeros_like(copies[name]) if slope is None else slope
    return results


def copied(value: Any, differentiate: bool) -> Any:
    return value.clone().requires_grad_(differentiate) if isinstance(value, torch.Tensor) else value


def flattened(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flattened(item, f"{name}[{key!r}]")
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from flattened(item, f"{name}[{index}]")
    else:
        yield name, value


def difference(got: dict[str, Any], expected: dict[str, Any], inputs: Inputs) -> str | None:
    """The first difference between two outcomes, or None."""
    if list(got) != list(expected):
        return f"it returns {list(got)}, not {list(expected)}"
    for name, want in expected.items():
        have = got[name]
        if type(have) is not type(want):
            return f"{name} is a {type(have).__name__}, not a {type(want).__name__}"
        try:
            torch.testing.assert_close(have, want, rtol=inputs.rtol, atol=inputs.atol, equal_nan=True)
        except AssertionError as error:
            return f"{name} differs\n  by hand {have!r}\n  package {want!r}\n  {str(error).splitlines()[0]}"
        except TypeError:  # neither numbers nor tensors
            if have != want:
                return f"{name} is {have!r}, not {want!r}"
    return None
