"""Keyed randomness: what is drawn depends on its key alone, never on call order, rank or batch layout.

A key is (seed, purpose, step, item). The same key gives the same numbers in every process, so rollouts do not depend
on the world size, and a resumed run needs no generator state.
"""

import hashlib

import numpy as np
import torch


def key_seed(seed: int, purpose: str, step: int = 0, item: int = 0) -> int:
    """A 63-bit seed for this key. Hashed, because neighbouring seeds of a generator must not give related streams."""
    digest = hashlib.blake2b(f"{seed}|{purpose}|{step}|{item}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def numpy_generator(seed: int, purpose: str, step: int = 0, item: int = 0) -> np.random.Generator:
    """A numpy generator for this key."""
    return np.random.default_rng(key_seed(seed, purpose, step, item))


def completion_uniforms(seed: int, step: int, indices: list[int], count: int) -> torch.Tensor:
    """Uniforms in [0, 1) for sampling tokens, one row for each completion.

    Args:
        seed: the run's seed.
        step: the update the completions are drawn for.
        indices: global completion indices, so that a rank draws only its own rows.
        count: uniforms per completion, one for each token it may have.

    Returns:
        float64 of shape (len(indices), count). A row's first n numbers do not depend on ``count``.
    """
    rows = [numpy_generator(seed, "completion", step, index).random(count) for index in indices]
    return torch.from_numpy(np.array(rows).reshape(len(indices), count))
