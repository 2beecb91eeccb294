"""SIGKILL at any moment: torchrun starts all ranks again, they go on from the last checkpoint, to the same bits."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file

RUN = {"preset": "cluster_ema", "steps": 6, "eval_every": 0, "checkpoint_every": 1, "microbatch_tokens": 50}
EXCHANGES = 60  # in six steps


@pytest.fixture(scope="module")
def undisturbed(torchrun, fields, tmp_path_factory):
    return finished(torchrun, fields, tmp_path_factory.mktemp("undisturbed"), [])


def finished(torchrun, fields, folder, kills: list[list]) -> list[dict[str, torch.Tensor]]:
    """Each rank's final weights and last gradients after a run in which these ranks were killed."""
    torchrun("killed.py", json.dumps(fields | RUN), str(folder), json.dumps(kills), max_restarts=len(kills) or 1)
    assert (folder / f"began-{len(kills)}-0").exists() and not (folder / f"began-{len(kills) + 1}-0").exists()
    return [load_file(folder / f"final.{rank}") for rank in (0, 1)]


def same(one, other) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a) for a, b in pairs)


def random_kills(seed: int, count: int) -> list[list]:
    draw = random.Random(seed)
    return [[draw.randrange(2), "meet", draw.randrange(1, EXCHANGES // count)] for _ in range(count)]


def test_killed_ranks_leave_the_bits_of_an_undisturbed_run(torchrun, fields, tmp_path, undisturbed):
    """Three random kills; ranks begin together, and not at the beginning again."""
    again = finished(torchrun, fields, tmp_path, random_kills(0, 3))
    assert same(again, undisturbed)
    began = [int((tmp_path / f"began-{attempt}-0").read_text()) for attempt in range(4)]
    assert began[0] == 0 and began == sorted(began) and began[-1] > 0
    assert all((tmp_path / f"began-{a}-1").read_text() == str(step) for a, step in enumerate(began))


def test_killed_while_writing_a_checkpoint(torchrun, fields, tmp_path, undisturbed):
    """The first file of one, then the second file of another, are there when rank 0 dies: the one before is loaded."""
    again = finished(torchrun, fields, tmp_path, [[0, "write", 5], [0, "write", 4]])
    assert same(again, undisturbed)
    began = [int((tmp_path / f"began-{attempt}-0").read_text()) for attempt in range(3)]
    assert began == [0, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_twenty_random_kills(torchrun, fields, tmp_path, undisturbed, seed):
    assert same(finished(torchrun, fields, tmp_path, random_kills(seed, 4)), undisturbed)
