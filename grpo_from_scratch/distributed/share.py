"""Which rows are whose: a step's rows are numbered alike on every rank, and each rank holds a share of them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_from_scratch.distributed.process_group import World


@dataclass(frozen=True)
class Share:
    """A rank's part of N rows. What ranks gather comes back in the rows' own order, whoever holds them.

    Attributes:
        world: the ranks.
        owner: (N,) the rank that holds each row; the same on every rank.
        unit: (N,) what each row belongs to, numbered from 0; a unit may have rows on several ranks.
    """

    world: World
    owner: Tensor
    unit: Tensor

    @property
    def rows(self) -> Tensor:
        """(n,) numbers of the rows held here, ascending; there may be none."""
        return (self.owner == self.world.rank).nonzero()[:, 0]

    @property
    def own_units(self) -> Tensor:
        """(n,) the unit of each row held here."""
        return self.unit[self.rows]

    @property
    def units(self) -> int:
        """How many there are on all ranks."""
        return int(self.unit.max()) + 1 if len(self.unit) else 0

    def select(self, rows: Tensor) -> "Share":
        """What is left of the N rows where ``rows`` (N,) is true; their units are numbered anew, in their order."""
        rows = rows.to(self.unit.device)
        return Share(self.world, self.owner[rows], self.unit[rows].unique(return_inverse=True)[1])

    def gather(self, label: str, own: Tensor) -> Tensor:
        """This rank's rows (n, ...) -> everyone's (N, ...)."""
        if self.world.size == 1:
            return own
        together = torch.cat(self.world.gather(label, own))
        return together[self._place().to(own.device)]

    def gather_list(self, label: str, own: list[Any]) -> list[Any]:
        """As ``gather``, of a list."""
        if self.world.size == 1:
            return own
        together = [value for part in self.world.gather_objects(label, own) for value in part]
        return [together[place] for place in self._place().tolist()]

    def take(self, whole: Tensor) -> Tensor:
        """Everyone's rows (N, ...) -> this rank's (n, ...)."""
        return whole if self.world.size == 1 else whole[self.rows.to(whole.device)]

    def _place(self) -> Tensor:
        """(N,) where each row stands when the ranks' rows are put one after another."""
        return self.owner.argsort(stable=True).argsort()


def alone(unit: Tensor) -> Share:
    """All rows on this one process."""
    return Share(World(), torch.zeros(len(unit), dtype=torch.long), unit.cpu())


def contiguous(world: World, units: int, rows_per_unit: int) -> Share:
    """Rows in contiguous blocks, unit after unit: whole units on a rank if there are enough for every rank."""
    unit = torch.arange(units).repeat_interleave(rows_per_unit)
    if units >= world.size:
        return Share(world, _blocks(units, world.size)[unit], unit)
    return Share(world, _blocks(len(unit), world.size), unit)


def one_after_another(shares: list[Share]) -> Share:
    """The rows of several shares as those of one, their units numbered through."""
    first = [sum(earlier.units for earlier in shares[:i]) for i in range(len(shares))]
    unit = torch.cat([share.unit + start for share, start in zip(shares, first, strict=True)])
    return Share(shares[0].world, torch.cat([share.owner for share in shares]), unit)


def _blocks(count: int, size: int) -> Tensor:
    """(count,) the rank of each of so many things: contiguous, and nowhere two more than elsewhere."""
    return torch.arange(count) * size // max(count, 1)
