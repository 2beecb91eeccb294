"""python -m grpo_from_scratch.course.covers

Writes one picture of each notebook, as it is stored, to ``notebooks/covers`` for the README, which cannot show what is
inside a notebook.
"""

import base64
from pathlib import Path

import nbformat

# Which of a notebook's pictures, counted from 1.
COVERS = {
    "01_policy_gradient": 7,
    "02_baselines": 4,
    "03_group_relative": 2,
    "04_tokens": 3,
    "05_clip_and_kl": 7,
    "06_dialogue_policy": 4,
    "07_train_grpo": 8,
    "08_ema_baselines": 1,
    "09_semantic_groups": 1,
    "10_ppo_vs_grpo": 9,
    "11_evaluate_and_improve": 13,
    "12_bug_clinic": 8,
    "13_mixed_precision": 3,
    "14_scale_out": 5,
}


def pictures(path: Path) -> list[bytes]:
    """The stored PNG pictures of a notebook, in their order."""
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells if cell.cell_type == "code" for output in cell.outputs]
    encoded = [output.get("data", {}).get("image/png") for output in outputs]
    return [base64.b64decode(text) for text in encoded if text]


def cover(path: Path) -> bytes:
    """The notebook's picture for the README.

    Raises:
        ValueError: no picture was chosen for it, or it has fewer pictures than that.
    """
    found, chosen = pictures(path), COVERS.get(path.stem)
    if chosen is None or chosen > len(found):
        raise ValueError(f"{path.name} stores {len(found)} pictures; choose one of them in COVERS, in {__file__}")
    return found[chosen - 1]


def main() -> None:
    for path in sorted(Path("notebooks").glob("*.ipynb")):
        target = path.parent / "covers" / f"{path.stem}.png"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(cover(path))
        print(target)


if __name__ == "__main__":
    main()
