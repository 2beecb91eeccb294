"""Checkpoints: everything that a bit-exact resume needs, written whole or not at all.

A state is a tree of dicts and lists. Tensors go to ``state.safetensors``, all else to ``state.json``: no pickle, so
loading a stranger's checkpoint runs no code. A checksum over both tells a damaged checkpoint, which training could not.
A checkpoint is written beside the previous one and takes its place by a rename, so a full disk or a killed process
leaves the previous one as it was.
"""

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

TENSOR = "__tensor__"


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write ``state`` as ``folder/step-<step>`` and remove older checkpoints once it is complete.

    Raises:
        OSError: the disk refused; the previous checkpoint is still whole.
        TypeError: the state holds something that is neither a tensor nor JSON.
    """
    target, partial = folder / f"step-{step:08d}", folder / f".partial-{step:08d}"
    if target in _complete(folder):
        return target  # saved just before an interruption: the same step of the same run
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        tensors: dict[str, torch.Tensor] = {}
        tree = _take_out_tensors(state, "", tensors, {})
        save_file(tensors, partial / "state.safetensors")
        written = json.dumps({"checksum": _checksum(tree, partial), "state": tree})
        (partial / "state.json").write_text(written, encoding="utf-8")
        for file in partial.iterdir():
            _flush_to_disk(file)
        os.replace(partial, target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    for old in _complete(folder):
        if old != target:
            shutil.rmtree(old, ignore_errors=True)
    return target


def latest_checkpoint(folder: Path) -> Path | None:
    """The newest complete checkpoint in ``folder``, if there is one."""
    return max(_complete(folder), default=None)


def checkpoint_step(path: Path) -> int:
    """The step after which it was saved."""
    return int(path.name.removeprefix("step-"))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """The state saved at ``path``.

    Raises:
        ValueError: the checkpoint is not readable.
    """
    try:
        written = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if written["checksum"] != _checksum(written["state"], path):
            raise ValueError("it is not what was written")
        return _put_back_tensors(written["state"], load_file(path / "state.safetensors"))
    except Exception as error:
        raise ValueError(f"{path} is not a readable checkpoint ({error}); delete it to start this run anew") from error


def _complete(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*") if (path / "state.json").is_file()]


def _checksum(tree: Any, folder: Path) -> str:
    with open(folder / "state.safetensors", "rb") as file:
        digest = hashlib.file_digest(file, "blake2b")
    digest.update(json.dumps(tree).encode())
    return digest.hexdigest()


def _take_out_tensors(node: Any, path: str, tensors: dict, seen: dict) -> Any:
    """The tree with each tensor replaced by its name. A tensor met twice (tied weights) is stored once."""
    if isinstance(node, torch.Tensor):
        key = (node.data_ptr(), node.shape, node.stride(), node.dtype) if node.numel() else path
        if key not in seen:
            seen[key] = path
            # safetensors refuses two tensors of one storage, which views are.
            tensors[path] = node.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {TENSOR: seen[key]}
    if isinstance(node, dict):
        return {
            _text(name, path): _take_out_tensors(child, f"{path}/{name}", tensors, seen) for name, child in node.items()
        }
    if isinstance(node, list | tuple):
        return [_take_out_tensors(child, f"{path}/{i}", tensors, seen) for i, child in enumerate(node)]
    if node is None or isinstance(node, str | bool | int | float):
        return node
    raise TypeError(f"a checkpoint holds tensors and JSON only; {path} is a {type(node).__name__}")


def _text(name: Any, path: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"keys of a checkpoint are text; {path} has {name!r}")
    return name


def _put_back_tensors(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(node, dict):
        if set(node) == {TENSOR}:
            return tensors[node[TENSOR]]
        return {name: _put_back_tensors(child, tensors) for name, child in node.items()}
    if isinstance(node, list):
        return [_put_back_tensors(child, tensors) for child in node]
    return node


def _flush_to_disk(file: Path) -> None:
    with open(file, "rb+") as handle:
        os.fsync(handle.fileno())
