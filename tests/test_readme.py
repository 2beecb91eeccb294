"""What README points at is there: files, sections of notebooks, and settings under their names."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from grpo_from_scratch.objective.presets import Preset
from grpo_from_scratch.training.config import TrainConfig

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
NAMES = README.partition("| ours | TRL | verl |")[2].partition("</details>")[0].strip().splitlines()[1:]
FIELDS = {field.name for kind in (TrainConfig, Preset) for field in dataclasses.fields(kind)}


def test_links_lead_to_files():
    targets = re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", README)
    local = [target for pair in targets for target in pair if target and not target.startswith("http")]
    assert len(local) > 20
    assert [target for target in local if not (ROOT / target).exists()] == []


def test_sections_are_headings_of_their_notebooks():
    """A reference is "[05](its file), *The loss is 0*" or "05, *The loss is 0*", and names the heading's beginning."""
    found = re.findall(r"\[?\b(\d\d)\b\]?(?:\(notebooks/[^)]+\))?, \*([^*]+)\*", README)
    assert len(found) > 10
    for number, title in found:
        (path,) = (ROOT / "notebooks").glob(f"{number}_*.ipynb")
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        lines = [
            line for cell in cells if cell["cell_type"] == "markdown" for line in "".join(cell["source"]).splitlines()
        ]
        assert any(line.startswith(f"## {title}") for line in lines), (number, title)


def first_column(cell):
    """Names in code marks, without what is after an equals sign: `scale` and `groups="prompt"`."""
    return [re.split(r"=|:", name)[0] for name in re.findall(r"`([^`]+)`", cell)]


def test_our_names_beside_others_are_settings():
    named = {name for row in NAMES if row.startswith("| `") for name in first_column(row.split("|")[1])}
    assert len(named) > 25
    assert named - FIELDS == {"--track wandb"}


def test_trl_names_are_settings_there():
    trl = pytest.importorskip("trl")
    theirs = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    arguments = {"reward_funcs", "peft_config", "RLOOTrainer"}  # of the trainer, and another trainer
    named = {name for row in NAMES if row.startswith("| `") for name in first_column(row.split("|")[2])}
    values = {"dapo", "cispo", "sapo"}
    assert named - theirs - arguments - values == set()
