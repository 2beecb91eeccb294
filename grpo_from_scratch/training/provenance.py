"""Where a number comes from: versions, source, and the data and weights that a run began with."""

import hashlib
import platform
from collections.abc import Iterable
from pathlib import Path

import torch
import transformers
from torch import nn

import grpo_from_scratch
from grpo_from_scratch.dialogue.dataset import Example

NOT_COMPUTING = ("course", "cli", "__main__.py")  # they decide no number of a run


def versions() -> dict[str, str]:
    """Of everything that a run's numbers depend on."""
    return {
        "grpo_from_scratch": grpo_from_scratch.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def source_hash(*, without: Iterable[str] = NOT_COMPUTING) -> str:
    """Of the package's source and data files, but for the folders and files of these names at its top."""
    root = Path(grpo_from_scratch.__file__).parent
    digest = hashlib.blake2b(digest_size=6)
    for file in sorted([*root.rglob("*.py"), *root.rglob("*.json")]):
        if file.relative_to(root).parts[0] not in without:
            digest.update(file.relative_to(root).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def data_hash(*lots: Iterable[Example]) -> str:
    """Of examples, in their order."""
    digest = hashlib.blake2b(digest_size=6)
    for lot in lots:
        for example in lot:
            digest.update(repr(example).encode())
    return digest.hexdigest()


def weights_hash(model: nn.Module) -> str:
    """Of a model's parameters, bit by bit."""
    digest = hashlib.blake2b(digest_size=6)
    for name, parameter in model.named_parameters():
        digest.update(name.encode() + parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()
