"""A notebook in every rank of a torchrun job."""

import os
import socket
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

MODULE = "grpo_from_scratch.distributed.notebook"
START = """import os, datetime, torch, torch.distributed as dist
rank = int(os.environ.get("RANK", 0))
if "RANK" in os.environ: dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))"""


@pytest.fixture
def notebook(tmp_path):
    def write(*cells):
        nodes = [cell if isinstance(cell, nbformat.NotebookNode) else new_code_cell(cell) for cell in cells]
        nbformat.write(
            new_notebook(cells=[new_markdown_cell("# T"), new_code_cell(START), *nodes]), tmp_path / "nb.ipynb"
        )
        return tmp_path / "nb.ipynb", tmp_path / "out.ipynb"

    return write


@pytest.fixture
def run(torchrun, notebook):
    """run(cell, …, code=0) -> (the job, the code cells of the executed copy)"""

    def start(*cells, code: int = 0):
        path, out = notebook(*cells)
        job = torchrun("-m", MODULE, str(path), "-o", str(out), code=code)
        return job, [cell for cell in nbformat.read(out, as_version=4).cells if cell.cell_type == "code"]

    return start


def test_ranks_talk_and_rank_0_shows_and_keeps_what_they_say(run):
    job, cells = run(
        "t = torch.tensor([rank + 1.0]); dist.all_reduce(t); print('sum', t.item())",
        "from IPython.display import *",
        "print('before'); display(Markdown('*x*'))\nrank",
        "import matplotlib.pyplot as plt\nplt.plot([rank, 1]);",
        "print('gone'); clear_output(wait=True); print('stays')",
        "h = display('first', display_id=True); h.update('second')",
        new_code_cell("raise SystemExit('for Jupyter only')", metadata={"tags": ["torchrun-skip"]}),
        "1 +  1;",
    )
    assert "sum 3.0\nbefore\n" in job.stdout and job.stdout.count("before") == 1  # rank 0 alone is heard
    kinds = [[output.output_type for output in cell.outputs] for cell in cells]
    assert kinds == [
        [],
        ["stream"],
        [],
        ["stream", "display_data", "execute_result"],
        ["display_data"],
        ["stream"],
        ["display_data"],
        [],
        [],
    ]
    assert cells[1].outputs[0].text == "sum 3.0\n" and cells[3].outputs[2].data["text/plain"] == "0"
    assert cells[4].outputs[0].data["image/png"].startswith("iVBOR")
    assert cells[5].outputs[0].text == "stays\n" and cells[6].outputs[0].data["text/plain"] == "'second'"
    assert [cell.execution_count for cell in cells] == [1, 2, 3, 4, 5, 6, 7, None, 8]


@pytest.mark.parametrize("rank", [0, 1])
def test_exception_in_any_rank_ends_the_job_and_names_rank_and_cell(run, rank):
    boom = f"if rank == {rank}: raise ValueError('boom')\ndist.barrier()"
    job, cells = run("print('fine')", boom, "print('never')", code=1)
    assert "never" not in job.stdout
    assert f'rank {rank}, cell 3 ("if rank == {rank}: raise ' in job.stderr and "ValueError: boom" in job.stderr
    assert cells[1].outputs[0].text == "fine\n"  # the copy holds what was done


@pytest.mark.parametrize("rank", [0, 1])
def test_killed_rank_ends_the_job_and_names_rank_and_cell(run, rank):
    kill = f"if rank == {rank}:\n    os.kill(os.getpid(), 9)\ndist.barrier()"
    job, _ = run("print('fine')", kill, "print('never')", code=1)
    assert "never" not in job.stdout
    assert f"rank {rank}, cell 3 ('if rank == {rank}:') did not finish: killed" in job.stderr


def test_one_process_without_torchrun(notebook):
    path, out = notebook("print('alone', rank)")
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    job = subprocess.run(
        [sys.executable, "-m", MODULE, path, "-o", out], capture_output=True, text=True, env=environment
    )
    assert job.returncode == 0 and job.stdout == "alone 0\n" and out.exists()


def test_two_nodes_meet_over_loopback(notebook):
    path, out = notebook(
        "t = torch.ones(1); dist.all_reduce(t); print(t.item(), os.environ['GROUP_RANK'], dist.get_world_size())"
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=test",
    ]
    command = [sys.executable, "-m", "torch.distributed.run", *flags, "-m", MODULE, str(path), "-o", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    agents = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    said = [agent.communicate() for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], said
    assert sorted(out for out, _ in said) == ["", "2.0 0 2\n"]


def test_a_missing_notebook_is_said_in_a_sentence(tmp_path):
    job = subprocess.run([sys.executable, "-m", MODULE, tmp_path / "no.ipynb"], capture_output=True, text=True)
    assert job.returncode == 2 and "there is no notebook" in job.stderr and "Traceback" not in job.stderr
