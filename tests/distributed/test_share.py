"""Who holds which rows, without any process."""

import pytest
import torch

from grpo_from_scratch.distributed.process_group import World
from grpo_from_scratch.distributed.share import alone, contiguous, one_after_another


def owners(units: int, rows: int, size: int) -> list[int]:
    return contiguous(World(size=size), units, rows).owner.tolist()


@pytest.mark.parametrize(
    "units, rows, size, expected",
    [
        (2, 4, 2, [0] * 4 + [1] * 4),  # MP-15: 8 completions, groups of 4, 2 ranks
        (3, 2, 2, [0] * 4 + [1] * 2),  # 3 prompts left for 2 ranks: whole groups, unequal shares
        (1, 7, 2, [0] * 4 + [1] * 3),  # one group spans the ranks
        (1, 1, 2, [0]),  # and rank 1 has nothing
        (2, 3, 1, [0] * 6),
        (0, 3, 2, []),
    ],
)
def test_contiguous_keeps_groups_whole_while_every_rank_gets_one(units, rows, size, expected):
    """MP-15: prompts and completions are counted apart, so nothing has to divide anything."""
    assert owners(units, rows, size) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_contiguous_is_even(size):
    for units in range(1, 30):
        owner = owners(units, 1, size)
        counts = torch.bincount(torch.tensor(owner), minlength=size)
        assert len(owner) == units and counts.max() - counts.min() <= 1 and owner == sorted(owner)


def test_shares_of_the_ranks_make_the_whole():
    """After selecting and putting rounds together each row has one owner, and rows keep their order."""
    rounds = [(5, 2), (3, 2), (1, 2)]
    keep = [torch.rand(units * rows, generator=torch.Generator().manual_seed(units)) < 0.6 for units, rows in rounds]
    taken = []
    for rank in range(3):
        world = World(rank, 3)
        parts = [contiguous(world, *shape).select(rows) for shape, rows in zip(rounds, keep, strict=True)]
        share = one_after_another(parts)
        whole = torch.arange(len(share.owner)) * 10
        assert torch.equal(share.take(whole), whole[share.rows])
        taken += share.rows.tolist()
        assert share.units == len(share.unit.unique()) and share.unit.tolist() == sorted(share.unit.tolist())
    assert sorted(taken) == list(range(sum(int(rows.sum()) for rows in keep)))


def test_alone_holds_all_rows_as_they_are():
    share = alone(torch.tensor([0, 0, 1]))
    values = torch.arange(3)
    assert share.gather("values", values) is values and share.take(values) is values
    assert share.rows.tolist() == [0, 1, 2] and share.units == 2
