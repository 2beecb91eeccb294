"""The README's view of the course is that of the notebooks."""

import re
from pathlib import Path

import nbformat
import pytest

from grpo_from_scratch.course.covers import cover

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_cover_is_the_stored_picture(path):
    """python -m grpo_from_scratch.course.covers writes them."""
    assert (path.parent / "covers" / f"{path.stem}.png").read_bytes() == cover(path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_readme_tells_each_notebooks_time(path):
    opening = nbformat.read(path, as_version=4).cells[0].source
    minutes, more = re.search(r"\*\*Time:\*\* (\d+) minutes, (\d+) more", opening).groups()
    (row,) = [line for line in README.splitlines() if line.startswith(f'| <img src="notebooks/covers/{path.stem}.png"')]
    assert f"covers/{path.stem}.png" in row and row.endswith(f"| {minutes} + {more} |")


def test_readme_names_only_notebooks_that_exist():
    assert set(re.findall(r"\(notebooks/(\w+\.ipynb)\)", README)) == {path.name for path in NOTEBOOKS}
