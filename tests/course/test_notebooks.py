"""The checker, checked: what store leaves passes, and every way a stored notebook can lie fails."""

import json
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from grpo_from_scratch.course import notebooks

ROOT = Path(__file__).parents[2]

# name: (source, does it still pass after `tampered` below)
CELLS = {
    "number": ("print('accuracy 0.726')", False),
    "integer": ("print('8 groups')", False),
    "word": ("print('GRPO wins')", False),
    "imports": ("import ipywidgets\nimport matplotlib.pyplot as plt\nfrom IPython.display import *", True),
    "html": ("HTML('<b>0.5</b>')", False),
    "picture gone": ("plt.subplots(figsize=(1, 1));", False),
    "picture new": ("plt.subplots(figsize=(1, 1));", False),
    "picture bits": ("plt.subplots(figsize=(1, 1));", True),
    "never run": ("print('run me')", False),
    "error stored": ("print('an error was stored')", False),
    "raises now": ("value = 1", False),
    "raises in a widget": ("out = ipywidgets.Output()\nwith out:\n    print('in the widget')", False),
    "low bits": ("print('loss 0.72601, gradient -0.000, largest difference 3.1e-08')", True),
    "aligned": ("print('[ 0.000,  1.250]')", True),
    "semicolon": ("1 + 1;", True),
    "cleared": ("print('before')\nclear_output()\nprint('after')", True),
    "cleared later": ("print('before')\nclear_output(wait=True)\nprint('after')", True),
    "updated": ("handle = display('1.5', display_id='a'); handle.update('2.5')", True),
    "interact": ("ipywidgets.interact(lambda clip: print(f'clip {clip}'), clip=(0.0, 1.0));", True),
    "timing": ("print('took 1.23 s at 45.6 it/s')", True),
    "unchecked": ("print('took 7.125')\nassert True", True),
    "pieces": ("import sys\nprint('one', end=' ', flush=True)\nprint('two')", True),
    "comes last": ("print('the end')", True),
}
NUMBERS = {name: number for number, name in enumerate(CELLS)}


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """A notebook as ``store`` leaves it."""
    path = tmp_path_factory.mktemp("stored") / "good.ipynb"
    cells = [new_markdown_cell("# A notebook"), *(new_code_cell(source) for source, _ in CELLS.values())]
    cells[1 + NUMBERS["unchecked"]].metadata.tags = ["nbval-ignore-output"]
    nbformat.write(new_notebook(cells=cells), path)
    assert notebooks.main(["store", str(path)]) == 0
    return path


def tampered(notebook):
    """The stored notebook with something wrong (or harmlessly different) in almost every cell."""
    cell = {name: notebook.cells[1 + number] for name, number in NUMBERS.items()}
    cell["number"].outputs[0].text = "accuracy 0.727\n"
    cell["integer"].outputs[0].text = "9 groups\n"
    cell["word"].outputs[0].text = "PPO wins\n"
    cell["html"].outputs[0].data["text/html"] = "<b>0.6</b>"
    cell["picture gone"].source = "plt.subplots(figsize=(1, 1)); plt.close(); display({'text/plain': 'x'}, raw=True)"
    cell["picture gone"].outputs[0].data["text/plain"] = "x"
    del cell["picture new"].outputs[0].data["image/png"]
    cell["picture bits"].outputs[0].data["image/png"] = cell["picture gone"].outputs[0].data["image/png"][:40]
    cell["never run"].update(execution_count=None, outputs=[])
    cell["error stored"].outputs = [new_output("error", ename="ValueError", evalue="no", traceback=[])]
    cell["raises now"].source = "raise ValueError('no')"
    cell["raises in a widget"].source += "\nwith out:\n    1 / 0"
    cell["low bits"].outputs[0].text = "loss 0.72602, gradient 0.000, largest difference 9.9e-08\n"
    cell["aligned"].outputs[0].text = "[-0.000,  1.250]\n"
    cell["timing"].outputs[0].text = "took 340 ms at 9 it/s\n"
    cell["unchecked"].outputs[0].text = "took 6.250\n"
    return notebook


@pytest.fixture(scope="module")
def results(stored, tmp_path_factory) -> dict[str, dict[str, str]]:
    """``pytest --nbval`` with the repository's conftest: {notebook: {item: why it failed, "" if it passed}}."""
    folder = tmp_path_factory.mktemp("nbval")
    for path in (stored, ROOT / "conftest.py", ROOT / "nbval_sanitize.cfg"):
        shutil.copy(path, folder)
    (folder / "pytest.ini").write_text("[pytest]\n")
    nbformat.write(tampered(nbformat.read(stored, as_version=4)), folder / "bad.ipynb")
    fatal = [new_markdown_cell("# t"), new_code_cell("import os\nos._exit(1)", execution_count=1)]
    nbformat.write(notebooks.clean(new_notebook(cells=fatal)), folder / "dead.ipynb")
    command = [sys.executable, "-m", "pytest", "--nbval", "-p", "no:cacheprovider", "--junitxml=report.xml"]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert run.returncode == 1, run.stdout + run.stderr
    found = {"good": {}, "bad": {}, "dead": {}}
    for case in ElementTree.parse(folder / "report.xml").iter("testcase"):
        notebook = case.get("classname").removesuffix(".ipynb")
        found[notebook][case.get("name")] = "".join(fault.text or "" for fault in case)
    return found


def test_stored_notebook_passes(stored, results):
    assert list(notebooks.problems(stored)) == []
    assert results["good"] == dict.fromkeys(["stored", *(f"Cell {number}" for number in NUMBERS.values())], "")


def test_store_keeps_what_a_reader_sees(stored):
    cells = nbformat.read(stored, as_version=4).cells[1:]

    def seen(name):
        outputs = cells[NUMBERS[name]].outputs
        return [output.get("text") or output.data["text/plain"].partition("(")[0] for output in outputs]

    assert seen("raises in a widget") == []  # what it printed went into a widget that is not shown
    assert seen("interact") == ["interactive"]
    assert seen("cleared") == seen("cleared later") == ["after\n"]
    assert seen("updated") == ["'2.5'"]
    assert seen("semicolon") == []
    assert seen("pieces") == ["one two\n"]
    assert not any(
        "widget-view" in kind for cell in cells for output in cell.outputs for kind in output.get("data", {})
    )


def test_stored_twice_is_byte_identical(stored):
    """NB-01: no cell depends on another run, and nothing volatile is kept."""
    before = stored.read_bytes()
    assert notebooks.main(["store", str(stored)]) == 0
    assert stored.read_bytes() == before


def test_tampered_cells_fail_and_harmless_differences_do_not(results):
    """NB-06: the last digits of printed numbers differ between machines, and are no difference."""
    passed = {name: not results["bad"][f"Cell {number}"] for name, number in NUMBERS.items()}
    assert passed == {name: still for name, (_, still) in CELLS.items()}
    assert "execution count None" in results["bad"]["stored"]
    assert "stores an error: ValueError" in results["bad"]["stored"]


def test_dead_kernel_fails_at_once(results):
    assert "the kernel died" in results["dead"]["Cell 0"]


def test_store_leaves_the_file_when_a_cell_raises(tmp_path, capsys):
    path = tmp_path / "raises.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1 / 0")]), path)
    before = path.read_bytes()
    assert notebooks.main(["store", str(path)]) == 1
    assert path.read_bytes() == before
    assert "ZeroDivisionError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "timeout", "complaint"),
    [("import os\nos._exit(1)", 600, "its kernel died"), ("while True: pass", 1, "not done after 1 seconds")],
)
def test_execute_gives_up_on_a_kernel_that_does_not_answer(tmp_path, source, timeout, complaint):
    with pytest.raises(notebooks.CellFailed, match=f"code cell 1: {complaint}"):
        notebooks.execute(new_notebook(cells=[new_code_cell(source)]), tmp_path, timeout=timeout)


# ---------------------------------------------------------------- check alone: no kernel


def stream(text, name="stdout"):
    return [new_output("stream", text=text, name=name)]


def shown(**data):
    return [new_output("display_data", data={kind.replace("_", "/"): value for kind, value in data.items()})]


def report(tmp_path, *cells, edit=lambda notebook: None) -> list[str]:
    notebook = notebooks.clean(new_notebook(cells=[new_markdown_cell("# Title"), *cells]))
    raw = json.loads(nbformat.v4.writes(notebook))
    edit(raw)
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return list(notebooks.problems(path))


def code(source="x = 1", *, count=1, outputs=(), tags=()):
    return new_code_cell(source, execution_count=count, outputs=list(outputs), metadata={"tags": list(tags)})


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        (code(count=None), "execution count None"),
        (code(count=2), "execution count 2, not 1"),
        (code(outputs=[new_output("error", ename="E", evalue="v", traceback=[])]), "stores an error: E: v"),
        (code(outputs=stream("UserWarning: old", "stderr")), "on stderr"),
        (code(outputs=stream("saved to /home/ada/runs")), "path of some machine: /home/ada"),
        (code(outputs=stream("at C:\\Users\\ada\\x")), "path of some machine: C:\\Users"),
        (code(outputs=stream("C:\\\\Users")), "path of some machine"),
        (code(outputs=stream("see file:///anything")), "path of some machine"),
        (code(outputs=shown(text_html="<i>/tmp/cache</i>")), "path of some machine: /tmp/cache"),
        (code(outputs=shown(text_plain="<f at 0x7f12aabbccdd>")), "memory address"),
        (code(tags=["nbval-ignore-outputs"]), "unknown tag"),
        (code("# NBVAL_SKIP\nx = 1"), "comment NBVAL_SKIP"),
        (code("x = 1", tags=["nbval-ignore-output"]), "does not end in an assert"),
        (code("assert True\nx = 1", tags=["nbval-ignore-output"]), "does not end in an assert"),
    ],
)
def test_problems_finds(tmp_path, cell, complaint):
    assert any(complaint in problem and "code cell 1" in problem for problem in report(tmp_path, cell))


@pytest.mark.parametrize(
    "cell",
    [
        code(outputs=stream("reward/KL and/or tmp, https://example.org/home/x, ratio 3/4, 0x1f")),
        code(outputs=shown(image_png="iVBORw0KGgo/home/ada0x12345678")),
        code("x = 1\nassert x", tags=["nbval-ignore-output", "twin:a.b", "exercise:f"]),
    ],
)
def test_problems_lets_pass(tmp_path, cell):
    assert report(tmp_path, cell) == []


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda n: n["metadata"].update(widgets={}), "metadata"),
        (lambda n: n["cells"].pop(0), "title"),
        (lambda n: n["cells"].append(n["cells"][0]), "two cells with one id"),
        (lambda n: n["cells"][0].update(source="# " + "x" * 1_000_000), "bytes"),
        (lambda n: n["cells"][1].update(outputs=[{"output_type": "none"}]), "not a valid notebook"),
        (lambda n: n["cells"][1].pop("id"), "one without"),
        (lambda n: n.update(nbformat_minor=4), "4.4"),
    ],
)
def test_problems_of_the_file(tmp_path, edit, complaint):
    assert any(complaint in problem for problem in report(tmp_path, code(), edit=edit))


def test_check_names_an_unreadable_file(tmp_path, capsys):
    (tmp_path / "torn.ipynb").write_text('{"cells": [')
    assert notebooks.main(["check", str(tmp_path / "torn.ipynb"), str(tmp_path / "absent.ipynb")]) == 1
    out = capsys.readouterr().out
    assert "torn.ipynb: cannot be read" in out and "absent.ipynb: cannot be read" in out


def test_main_without_notebooks_says_where_to_stand(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        notebooks.main(["check"])
    assert "repository's root" in capsys.readouterr().err
