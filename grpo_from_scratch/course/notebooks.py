"""Store the course's notebooks with their outputs, and check what is stored.

    python -m grpo_from_scratch.course.notebooks store [FILE ...]    run in a fresh kernel, keep the outputs
    python -m grpo_from_scratch.course.notebooks check [FILE ...]    fail when a file is not what a clean run leaves

Without files, all of ``notebooks/``. Storing twice leaves the same bytes.
"""

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty

import nbformat
from jupyter_client.manager import start_new_kernel
from nbformat.v4 import output_from_msg

KERNEL_STARTS = 300  # seconds: a second or two on a free machine, minutes on one that is very busy
MAX_BYTES = 1_000_000  # GitHub stops rendering notebooks of a few MB; diffs suffer long before
WIDGET = "application/vnd.jupyter.widget-view+json"
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
}
# unchecked: its outputs may differ from run to run (a timing, a long learning curve), so it ends in asserts
UNCHECKED = "nbval-ignore-output"
TAGS = re.compile(rf"{UNCHECKED}|torchrun-skip|twin:[\w.]+|exercise:\w+")
MARKER = re.compile(r"^\s*#\s*(NBVAL_\w+|PYTEST_VALIDATE_\w+)\s*$", re.MULTILINE)
MACHINE_PATH = re.compile(
    r"(?<![\w.:/])/(?:home|root|Users|tmp|work|opt|private|var|usr|mnt|srv)/[\w.-]+|\b[A-Za-z]:\\+\w+|file://\S+"
)
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{6,16}\b")
SHOWN = ("stream", "display_data", "execute_result")  # the kernel's messages that a reader sees


class CellFailed(Exception):
    """A cell raised, or its kernel died or took too long."""


def kernel_environment(folder: Path) -> dict[str, str]:
    """The environment every notebook is stored and tested in.

    The reader's own IPython profile and course progress stay out of it (``folder`` takes their place), and one thread
    and a fixed hash seed make the numbers repeatable.
    """
    return dict(
        os.environ,
        GRPO_DATA_DIR=str(folder / "data"),
        IPYTHONDIR=str(folder / "ipython"),
        MPLBACKEND="module://matplotlib_inline.backend_inline",
        PYTHONHASHSEED="0",
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
    )


def execute(notebook: nbformat.NotebookNode, folder: Path, *, timeout: float = 600) -> nbformat.NotebookNode:
    """Run all cells in a fresh kernel whose working directory is ``folder``; outputs are written into ``notebook``.

    Not nbclient's: its asyncio sockets miss a kernel's reply once in a while and then wait out the whole timeout.

    Raises:
        CellFailed: naming the cell, with its traceback.
    """
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    with tempfile.TemporaryDirectory() as home:
        # stderr: only what the kernel itself says (a warning about TCP); what cells write there comes as output
        manager, client = start_new_kernel(
            startup_timeout=KERNEL_STARTS,
            kernel_name="python3",
            cwd=folder,
            env=kernel_environment(Path(home)),
            stderr=subprocess.DEVNULL,
        )
        try:
            for number, cell in enumerate(cells, 1):
                messages = settled(cell_messages(manager, client, cell.source, timeout))
                cell.execution_count, cell.outputs = number, merged(messages)
                for output in cell.outputs:
                    if output.output_type == "error":
                        raise CellFailed(f"code cell {number} raised\n" + "\n".join(output.traceback))
        except TimeoutError as error:
            raise CellFailed(f"code cell {number}: {error}") from None
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=True)
    return notebook


def cell_messages(manager, client, source: str, timeout: float) -> list[dict]:
    """Run ``source`` and collect what the kernel publishes about it.

    Raises:
        TimeoutError: the kernel died, or the cell was not done in time.
    """
    request = client.execute(source, allow_stdin=False, stop_on_error=False)
    messages, end = [], time.monotonic() + timeout
    while not (messages and is_idle(messages[-1])):
        try:
            message = client.get_iopub_msg(timeout=1)
        except Empty:
            if not manager.is_alive():
                raise TimeoutError("its kernel died (out of memory?)") from None
            if time.monotonic() > end:
                raise TimeoutError(f"not done after {timeout:.0f} seconds") from None
        else:
            if message["parent_header"].get("msg_id") == request:
                messages.append(message)
    return messages


def is_idle(message: dict) -> bool:
    return message["msg_type"] == "status" and message["content"]["execution_state"] == "idle"


def settled(messages: list[dict]) -> list[dict]:
    """One cell's messages as a front end leaves them: output of widgets taken out, clearing and updates carried out."""
    kept, capturing, clear_next, displays = [], set(), False, {}
    for message in messages:
        kind, content = message["msg_type"], message["content"]
        if kind in ("comm_open", "comm_msg"):
            state = (content.get("data") or {}).get("state") or {}
            if "msg_id" in state:  # an Output widget starts to capture (an id) or stops ("")
                (capturing.add if state["msg_id"] else capturing.discard)(content["comm_id"])
        elif capturing and kind in (*SHOWN, "clear_output"):
            continue
        elif kind == "update_display_data":
            if shown := displays.get(content["transient"]["display_id"]):
                shown["data"] = content["data"]
        elif kind == "clear_output" and content.get("wait"):
            clear_next = True
        else:
            if kind == "clear_output" or (clear_next and kind in SHOWN):
                kept = [m for m in kept if m["msg_type"] not in SHOWN]
                clear_next = False
            if display := (content.get("transient") or {}).get("display_id"):
                displays[display] = content
            if kind != "clear_output":
                kept.append(message)
    return kept


def merged(messages: list[dict]) -> list[nbformat.NotebookNode]:
    """The outputs in these messages; text printed in pieces is one output, since where it breaks is chance."""
    outputs = []
    for message in messages:
        if message["msg_type"] not in (*SHOWN, "error"):
            continue
        output = output_from_msg(message)
        if outputs and output.output_type == "stream" and output.name == outputs[-1].get("name"):
            outputs[-1].text += output.text
        else:
            outputs.append(output)
    return outputs


def clean(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Keep what a reader needs: no editor's metadata, and of a live widget only the picture that stands behind it."""
    notebook.metadata = nbformat.from_dict(METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {})
        for output in cell.get("outputs", []):
            output.get("data", {}).pop(WIDGET, None)
    return notebook


def store(path: Path) -> None:
    """Run the notebook and write it back with its outputs; a cell that raises leaves the file as it was."""
    notebook = execute(nbformat.v4.upgrade(nbformat.read(path, as_version=4)), path.parent)
    text = nbformat.writes(clean(notebook)) + "\n"
    path.write_text(text, encoding="utf-8", newline="\n")


def problems(path: Path) -> Iterator[str]:
    """What keeps this file from being what ``store`` leaves, one sentence each; nothing when all is well."""
    text = path.read_text(encoding="utf-8")
    notebook = nbformat.v4.reads(text)  # nbformat.read would mend ids and keep quiet about it
    version = (notebook.nbformat, notebook.nbformat_minor)
    if version < (4, 5):
        yield f"is in notebook format {version[0]}.{version[1]}, and cells have ids from 4.5 on: store it"
        return
    if len({cell.get("id") for cell in notebook.cells} - {None}) != len(notebook.cells):
        yield "has two cells with one id, or one without: store it"
        return
    try:
        nbformat.validate(notebook)
    except nbformat.ValidationError as error:
        yield f"is not a valid notebook: {str(error).splitlines()[0]}"
        return
    if len(text.encode()) > MAX_BYTES:
        yield f"has {len(text.encode()):,} bytes, more than {MAX_BYTES:,}: smaller or fewer pictures"
    if notebook.metadata != METADATA:
        yield "has metadata that store would change: store it"
    if not (notebook.cells and notebook.cells[0].cell_type == "markdown" and notebook.cells[0].source.startswith("# ")):
        yield "does not open with a title (a markdown cell that starts with '# ')"
    for number, cell in enumerate((c for c in notebook.cells if c.cell_type == "code"), 1):
        for problem in cell_problems(cell, number):
            yield f"code cell {number} {problem}"


def cell_problems(cell: nbformat.NotebookNode, number: int) -> Iterator[str]:
    """What is wrong with the ``number``-th code cell and its stored outputs."""
    tags = cell.metadata.get("tags", [])
    for tag in tags:
        if not TAGS.fullmatch(tag):
            yield f"has the unknown tag {tag!r}"
    if marker := MARKER.search(cell.source):
        yield f"has the comment {marker[1]}: use the tag {UNCHECKED!r}, which shows in the editor"
    if cell.execution_count != number:
        yield f"has execution count {cell.execution_count}, not {number}: it was not run top to bottom"
    if UNCHECKED in tags and not ends_in_assert(cell.source):
        yield f"is tagged {UNCHECKED!r} and does not end in an assert, so nothing holds what it shows"
    for output in cell.outputs:
        if output.output_type == "error":
            yield f"stores an error: {output.ename}: {output.evalue}"
        elif output.output_type == "stream" and output.name == "stderr":
            yield f"stores a warning or other text on stderr: {output.text.strip()[:80]!r}"
        for shown in texts(output):
            if found := MACHINE_PATH.search(shown):
                yield f"shows a path of some machine: {found[0]}"
            if found := ADDRESS.search(shown):
                yield f"shows a memory address, other in every run: {found[0]}"


def texts(output: nbformat.NotebookNode) -> Iterator[str]:
    """Everything in an output that is read rather than looked at."""
    if output.output_type == "stream":
        yield output.text
    for kind, value in output.get("data", {}).items():
        if not kind.startswith("image/") and isinstance(value, str):
            yield value


def ends_in_assert(source: str) -> bool:
    body = ast.parse(source).body
    return bool(body) and isinstance(body[-1], ast.Assert)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grpo_from_scratch.course.notebooks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["store", "check"])
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    files = options.files or sorted(Path("notebooks").glob("*.ipynb"))
    if not files:
        parser.error("no notebooks/*.ipynb here: name the files, or run this from the repository's root")
    found = 0
    for path in files:
        start = time.perf_counter()
        try:
            if options.command == "store":
                store(path)
                print(f"{path.name}: stored in {time.perf_counter() - start:.0f} s")
            report = list(problems(path))
        except CellFailed as error:
            report = [f"not stored: {error}"]
        except (OSError, ValueError, AttributeError, TypeError, RecursionError, nbformat.ValidationError) as error:
            report = [
                f"cannot be read: {str(error).strip().splitlines()[0]}"
            ]  # not UTF-8, not JSON, or of something else
        for problem in report:
            print(f"{path.name}: {problem}")
        found += len(report)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
