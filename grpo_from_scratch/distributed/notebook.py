"""Run a notebook's code cells in every rank of a torchrun job.

    torchrun --standalone --nproc-per-node=2 -m grpo_from_scratch.distributed.notebook NOTEBOOK -o EXECUTED

Every rank steps through the cells in a shell of its own, so the notebook that a reader runs in Jupyter, as a world of
size 1, is unchanged the distributed job. Rank 0 shows what the cells print and keeps an executed copy, pictures
included, up to date after each cell; the other ranks are silent. A cell tagged ``torchrun-skip`` is left out: it is for
Jupyter alone (a cell that starts torchrun, say). Several nodes are torchrun's own business (``--nnodes``,
``--rdzv-endpoint``).

A cell that raises in any rank ends the job, and torchrun's summary names the rank and the cell; so it does when a rank
is killed.
"""

import argparse
import base64
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import nbformat
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from nbformat.v4 import new_output
from torch import distributed
from torch.distributed.elastic.multiprocessing.errors import get_error_handler
from traitlets.config import Config

SKIP = "torchrun-skip"
WIDGET = "application/vnd.jupyter.widget-view+json"  # a live control needs a kernel: only its still picture is kept


class CellFailed(Exception):
    """A cell raised; the message names rank and cell and ends with the traceback."""


class CellNotFinished(Exception):
    """What torchrun is to say of a rank that ends inside a cell without a word: it was killed."""


class Recorder:
    """The outputs of the cell that runs, as a notebook stores them.

    Args:
        echo: show them on the console, too.
    """

    def __init__(self, echo: bool):
        self.echo = echo
        self.displays: dict[str, nbformat.NotebookNode] = {}  # by display id, for later updates
        self.start()

    def start(self) -> None:
        """The next cell: outputs so far are its predecessor's."""
        self.outputs: list[nbformat.NotebookNode] = []
        self.clear_next = False

    def clear(self, wait: bool = False) -> None:
        self.clear_next = wait
        if not wait:
            self.outputs.clear()

    def add(self, output: nbformat.NotebookNode) -> None:
        if self.clear_next:
            self.clear()
        last = self.outputs[-1] if self.outputs else {}
        if output.output_type == "stream" and output.name == last.get("name"):
            last["text"] += output.text
        else:
            self.outputs.append(output)

    def write(self, name: str, text: str) -> None:
        """Text printed to the stream of this name."""
        self.add(new_output("stream", name=name, text=text))
        if self.echo:
            console = getattr(sys, f"__{name}__")
            console.write(text)
            console.flush()

    def show(self, kind: str, data: dict, *, display_id: str | None = None, update: bool = False, **more: Any) -> None:
        """What is displayed: a MIME bundle, of which the console shows the text."""
        data = {
            mime: base64.b64encode(value).decode() if isinstance(value, bytes) else value
            for mime, value in data.items()
            if mime != WIDGET
        }
        if update:
            if display_id in self.displays:
                self.displays[display_id].data = nbformat.from_dict(data)
            return
        output = new_output(kind, data=data, **more)
        if display_id:
            self.displays[display_id] = output
        self.add(output)
        if self.echo:
            print(data.get("text/plain", ""), file=sys.__stdout__, flush=True)


class Stream(io.TextIOBase):
    """stdout or stderr while a cell runs."""

    def __init__(self, recorder: Recorder, name: str):
        self.recorder, self.name = recorder, name

    def write(self, text: str) -> int:
        if text:
            self.recorder.write(self.name, text)
        return len(text)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:  # for a subprocess that a cell starts
        return getattr(sys, f"__{self.name}__").fileno()


def shell_for(recorder: Recorder) -> InteractiveShell:
    """An IPython shell in this process whose output goes to ``recorder``."""

    class Publisher(DisplayPublisher):
        def publish(self, data, metadata=None, *, transient=None, update=False, **_):
            display_id = (transient or {}).get("display_id")
            recorder.show("display_data", data, metadata=metadata or {}, display_id=display_id, update=update)

        def clear_output(self, wait=False):
            recorder.clear(wait)

    class Hook(DisplayHook):
        def write_output_prompt(self):
            pass

        def write_format_data(self, format_dict, md_dict=None):
            recorder.show("execute_result", format_dict, metadata=md_dict or {}, execution_count=self.prompt_count)

        def finish_displayhook(self):
            self._is_active = False

    class Shell(InteractiveShell):
        display_pub_class = Publisher
        displayhook_class = Hook

        def enable_gui(self, gui=None):
            pass  # figures are pictures in the output; there is no window to keep alive

        def _showtraceback(self, etype, evalue, stb):
            recorder.add(new_output("error", ename=etype.__name__, evalue=str(evalue), traceback=list(stb)))

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    return Shell.instance(config=config)


def run_notebook(path: Path, executed: Path | None) -> None:
    """Run the code cells of ``path`` in this rank, in the notebook's folder; rank 0 writes ``executed`` after each.

    Raises:
        CellFailed: a cell raised.
    """
    rank = int(os.environ.get("RANK", 0))
    notebook = read_notebook(path)
    recorder = Recorder(echo=rank == 0)
    shell = shell_for(recorder)
    sys.path.insert(0, str(path.parent))
    os.chdir(path.parent)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in cells:
        cell.outputs, cell.execution_count = [], None
    for number, cell in enumerate(cells, 1):
        if not cell.source.strip() or SKIP in cell.metadata.get("tags", []):
            continue
        recorder.start()
        where = f"rank {rank}, cell {number} ({cell.source.strip().splitlines()[0]!r})"
        with (
            told_if_killed(where),
            redirect_stdout(Stream(recorder, "stdout")),
            redirect_stderr(Stream(recorder, "stderr")),
        ):
            result = shell.run_cell(cell.source, store_history=True)
        cell.outputs, cell.execution_count = recorder.outputs, result.execution_count
        if rank == 0 and executed:
            write_whole(notebook, executed)
        if error := result.error_before_exec or result.error_in_exec:
            trace = "\n".join(line for output in recorder.outputs for line in output.get("traceback", []))
            raise CellFailed(f"{where}: {type(error).__name__}: {error}\n{trace}")


@contextmanager
def told_if_killed(where: str) -> Iterator[None]:
    """Leave word for torchrun, which reads this file when the process is gone: killed, it could not write any more."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not file:
        yield
        return
    try:
        raise CellNotFinished(f"{where} did not finish: killed, or out of memory")
    except CellNotFinished as word:
        get_error_handler().record_exception(word)
    yield
    Path(file).unlink(missing_ok=True)


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """The notebook in this file.

    Raises:
        ValueError: there is none in it.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except Exception as error:  # nbformat looks into whatever the JSON is
        why = str(error).strip().splitlines()[:1]
        raise ValueError(f"{path} is no notebook ({type(error).__name__}: {' '.join(why)[:200]})") from error
    return notebook


def write_whole(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Whole or not at all: the job may be ended at any time."""
    partial = path.with_suffix(".partial")
    nbformat.write(notebook, partial)
    partial.replace(path)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grpo_from_scratch.distributed.notebook",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("notebook", type=Path)
    parser.add_argument("-o", "--output", type=Path, help="the executed copy, written by rank 0")
    options = parser.parse_args(arguments)
    if not options.notebook.is_file():
        parser.error(f"there is no notebook {options.notebook}")
    try:
        read_notebook(options.notebook)
    except ValueError as error:
        parser.error(str(error))
    os.environ["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"
    handler = get_error_handler()
    handler.initialize()
    try:
        run_notebook(options.notebook.resolve(), options.output and options.output.resolve())
    except CellFailed as failure:
        print(failure, file=sys.__stderr__, flush=True)
        handler.record_exception(failure)
        sys.__stdout__.flush()
        os._exit(1)  # no exit handlers: they may wait for ranks that wait for this one
    if distributed.is_initialized():
        distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
