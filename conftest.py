"""Make ``pytest --nbval`` judge a stored notebook by what its reader sees.

nbval compares raw kernel messages. Every front end, and our ``store``, does more with them: ``clear_output`` and
updated displays change what is shown, what is printed inside an ipywidgets ``Output`` belongs to the widget, a trailing
semicolon hides a value. Here nbval does the same. It is stricter than nbval about cells that were never run, pictures
that are gone and everything ``python -m grpo_from_scratch.course.notebooks check`` finds, and it compares numbers to a
tolerance, since low bits differ between CPUs. It replaces nbval's own classes, so nbval is pinned;
tests/course/test_notebooks.py holds all of it.
"""

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from queue import Empty

import nbval.kernel
import nbval.plugin
import pytest

from grpo_from_scratch.course.notebooks import is_idle, kernel_environment, problems, settled

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: two threads are slower than one on a loaded machine

RTOL, ATOL = 1e-3, 1e-6
# a number with a point or an exponent, and the spaces before it: "[ 0.00" and "[-0.00" differ by a sign of nothing
NUMBER = re.compile(r"(?<![\w.]) *[-+]?(?:\d+\.\d*|\.\d+|\d+(?=e[-+]?\d))(?:e[-+]?\d+)?(?!\w)")
PNG = "iVBORw0KGgo"  # how a PNG begins in base64


class Text(str):
    """A string that equals another when the words agree and every number is close."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        if not isinstance(other, str):
            return NotImplemented
        if NUMBER.sub("#", self) != NUMBER.sub("#", str(other)):
            return False
        pairs = zip(NUMBER.findall(self), NUMBER.findall(other), strict=True)
        return all(abs(float(a) - float(b)) <= ATOL + RTOL * abs(float(b)) for a, b in pairs)

    def __ne__(self, other):
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal


class Kernel(nbval.kernel.RunningKernel):
    """A kernel in the environment notebooks are stored in; a cell's messages are handed over once they have settled."""

    def __init__(self, kernel_name, cwd=None, startup_timeout=60):
        self.home = tempfile.TemporaryDirectory()
        self.settled_messages = []
        self.km, self.kc = nbval.kernel.start_new_kernel(
            startup_timeout,
            kernel_name,
            cwd=cwd,
            env=kernel_environment(Path(self.home.name)),
            stderr=subprocess.DEVNULL,
        )
        self._ensure_iopub_up()

    def get_message(self, stream, timeout=None):
        if stream != "iopub":
            return super().get_message(stream, timeout)
        if not self.settled_messages:
            batch = [super().get_message(stream, timeout)]
            while not is_idle(batch[-1]):
                batch.append(super().get_message(stream, timeout))
            self.settled_messages = settled(batch)
        return self.settled_messages.pop(0)

    def await_reply(self, msg_id, timeout=None):
        # nbval would wait out the cell's timeout, half an hour, for a kernel that is gone
        end = time.monotonic() + timeout
        while True:
            try:
                return super().await_reply(msg_id, timeout=min(1, timeout))
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("the kernel died while this cell ran (out of memory?)") from None
                if time.monotonic() > end:
                    raise

    def execute_cell_input(self, cell_input, allow_stdin=None):
        # nbval sets store_history=False, and then IPython does not see the trailing semicolon
        return self.kc.execute(cell_input, store_history=True, allow_stdin=allow_stdin, stop_on_error=False)

    def stop(self):
        super().stop()
        self.home.cleanup()


class Cell(nbval.plugin.IPyNbCell):
    """A code cell, run and compared with what is stored."""

    def runtest(self):
        if self.cell.execution_count is None:
            self.raise_cell_error("This cell was stored without having been run")
        super().runtest()

    def sanitize(self, value):
        if not isinstance(value, str):
            return value
        if value.startswith(PNG):
            return "a picture"  # its bits differ between machines; that it is there does not
        return Text(super().sanitize(value))


class Stored(pytest.Item):
    """The file itself: what ``grpo_from_scratch.course.notebooks check`` says of it."""

    def runtest(self):
        if found := list(problems(self.path)):
            pytest.fail("\n".join(f"{self.path.name}: {problem}" for problem in found), pytrace=False)

    def reportinfo(self):
        return self.path, 0, f"{self.path.name}::stored"


class Notebook(nbval.plugin.IPyNbFile):
    """A notebook: the file, then its cells in one kernel."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.skip_compare = tuple(key for key in self.skip_compare if key != "image/png")

    def collect(self):
        yield Stored.from_parent(self, name="stored")
        for cell in super().collect():
            yield Cell.from_parent(self, name=cell.name, cell_num=cell.cell_num, cell=cell.cell, options=cell.options)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(parent):
    collected = yield
    return [
        Notebook.from_parent(parent, path=node.path) if isinstance(node, nbval.plugin.IPyNbFile) else node
        for node in collected
    ]


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    nbval.plugin.RunningKernel = Kernel
    if not config.option.nbval_kernel_name:
        config.option.nbval_current_env = True  # not whatever "python3" means on this machine
    if not config.option.nbval_sanitize_with:
        config.option.nbval_sanitize_with = str(config.rootpath / "nbval_sanitize.cfg")
