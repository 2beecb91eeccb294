"""The course's last notebook is a distributed job as it stands."""

from pathlib import Path

import nbformat

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "14_scale_out.ipynb"
SKIPPED = "torchrun-skip"


def test_notebook_14_runs_on_two_ranks(torchrun, tmp_path):
    """Every cell but those for Jupyter alone; ranks share the replies, and the stored copy is of one process."""
    executed = tmp_path / "executed.ipynb"
    torchrun("-m", "grpo_from_scratch.distributed.notebook", str(NOTEBOOK), "-o", str(executed))
    cells = [cell for cell in nbformat.read(executed, as_version=4).cells if cell.cell_type == "code"]
    assert all((cell.execution_count is None) == (SKIPPED in cell.metadata.get("tags", [])) for cell in cells)
    outputs = [output for cell in cells for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error" or output.get("name") == "stderr"]
    said = "".join(output.get("text", "") for output in outputs)
    for line in ("rank 0 of 2", "64 of 128 replies are mine", "2 process(es), loss scale", "bit for bit, on 2 ranks"):
        assert line in said
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) >= 8
