"""The processes of one job: who they are, and the few things they tell each other.

One process is the world of size 1, in which every operation gives back what it was given; so nothing that uses a world
asks whether it is distributed. Every operation carries a label. Before anything is exchanged the ranks compare labels,
so that ranks that went different ways are told apart from one that is late, and both are named.
"""

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

TIMEOUT = 300.0  # seconds a rank waits for the others; longer than the slowest rollout, reward or checkpoint of one
LABEL = 64  # bytes of a label that are compared
GRACE = 3.0  # seconds that ranks take, once an operation has failed, to find out who is missing
SLOT = 4096  # bytes that travel with the label, so that small things need one exchange and not two
BUCKET = 64 * 2**20  # bytes of gradients that are summed at a time

_current: "World | None" = None


class RankFailure(RuntimeError):
    """Another rank is gone, stuck, or somewhere else in the program; the message names it."""


@dataclass(frozen=True)
class World:
    """This process among the ``size`` processes of the job.

    Every rank has to call the same operations with the same labels in the same order.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0  # among the processes of this machine
    device: torch.device = torch.device("cpu")
    timeout: float = TIMEOUT
    store: dist.Store | None = None  # what is left to talk through when an operation has failed

    @property
    def is_first(self) -> bool:
        """Rank 0, the only one that writes files."""
        return self.rank == 0

    def sum(self, label: str, tensor: Tensor) -> Tensor:
        """The sum over ranks of tensors of one shape."""
        if self.size == 1:
            return tensor
        if tensor.nbytes <= SLOT:
            return torch.stack(self.gather(label, tensor[None])).sum(0)[0]
        total = tensor.clone()
        self._meet(label)
        self._guarded(label, lambda: dist.all_reduce(total))
        return total

    def gather(self, label: str, rows: Tensor) -> list[Tensor]:
        """Every rank's rows, by rank: (n_r, ...) each, where ranks may have any number of rows, or none.

        All but the first dimension must be the same everywhere.
        """
        if self.size == 1:
            return [rows]
        small = rows.contiguous() if rows.nbytes <= SLOT else rows[:0]
        slots, counts = self._meet(label, small.cpu().flatten().view(torch.uint8), len(rows))
        row = rows.new_zeros(1, *rows.shape[1:])
        if max(counts) * row.nbytes <= SLOT:
            ends = [count * row.nbytes for count in counts]
            parts = [slot[:end].clone().view(rows.dtype) for slot, end in zip(slots, ends, strict=True)]
            shapes = [(count, *rows.shape[1:]) for count in counts]
            return [part.view(shape).to(rows.device) for part, shape in zip(parts, shapes, strict=True)]
        padded = torch.cat([rows, row.expand(max(counts) - len(rows), *rows.shape[1:])])
        everyone = [torch.empty_like(padded) for _ in counts]
        self._guarded(label, lambda: dist.all_gather(everyone, padded))
        return [tensor[:count] for tensor, count in zip(everyone, counts, strict=True)]

    def gather_objects(self, label: str, value: Any) -> list[Any]:
        """Every rank's value, by rank."""
        if self.size == 1:
            return [value]
        everyone: list[Any] = [None] * self.size
        self._meet(label)
        self._guarded(label, lambda: dist.all_gather_object(everyone, value))
        return everyone

    def from_first(self, label: str, function: Callable[[], Any]) -> Any:
        """What rank 0's call returns, on every rank; an exception that it raises is raised on every rank too.

        For what only one rank may do (write a file), or what must not differ by a bit (a fit in several threads).
        """
        if self.size == 1:
            return function()
        answer = [None, None]
        if self.is_first:
            try:
                answer[0] = function()
            except Exception as error:
                answer[1] = error
        self._meet(label)
        self._guarded(label, lambda: dist.broadcast_object_list(answer, src=0, device=torch.device("cpu")))
        if answer[1] is not None:
            raise answer[1]
        return answer[0]

    def agree(self, label: str, value: str) -> None:
        """See that the value is the same on every rank.

        Raises:
            RankFailure: it is not; the message names the ranks that differ from rank 0.
        """
        values = self.gather_objects(label, value)
        odd = [rank for rank, other in enumerate(values) if other != values[0]]
        if odd:
            raise RankFailure(f"{label}: {_ranks(odd)} and rank 0 differ ({values[odd[0]]} and {values[0]})")

    def sum_gradients(self, label: str, parameters: Iterable[Tensor]) -> None:
        """Replace each gradient by its sum over ranks. A rank without one adds nothing; without any it stays None.

        Sharded parameters are left alone: what sharded them has summed their gradients in the backward pass.

        A sum, where DistributedDataParallel takes a mean: the loss has a global denominator already. And always in the
        same buckets, where DistributedDataParallel makes new ones after its first backward pass: with three ranks or
        more that changes the order of additions, and a resumed run would not repeat the undisturbed one bit for bit.
        """
        if self.size == 1:
            return
        for number, bucket in enumerate(_buckets([p for p in parameters if not isinstance(p, DTensor)])):
            flat = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in bucket]
            present = bucket[0].new_tensor([float(p.grad is not None) for p in bucket])
            total = self.sum(f"{label}, part {number}", torch.cat([*flat, present]))
            *sums, present = total.split([*[p.numel() for p in bucket], len(bucket)])
            for parameter, gradient, ranks in zip(bucket, sums, present.tolist(), strict=True):
                parameter.grad = gradient.view_as(parameter).clone() if ranks else None

    def _meet(self, label: str, small: Tensor | None = None, rows: int = 0) -> tuple[list[Tensor], list[int]]:
        """Wait for every rank at this label. Returns every rank's ``small`` (at most SLOT bytes, padded) and ``rows``.

        A message has one size whatever it says, so that ranks that went different ways still understand each other.
        """
        message = torch.zeros(8 + LABEL + SLOT, dtype=torch.uint8)
        message[:8] = torch.tensor([rows]).view(torch.uint8)
        text = label.encode()[:LABEL]
        message[8 : 8 + len(text)] = torch.tensor(list(text), dtype=torch.uint8)
        if small is not None:
            message[8 + LABEL :][: len(small)] = small
        everyone = [torch.empty_like(message) for _ in range(self.size)]
        self._guarded(label, lambda: dist.all_gather(everyone, message))
        counts, labels, slots = zip(*(other.split([8, LABEL, SLOT]) for other in everyone), strict=True)
        if any(not torch.equal(other, labels[0]) for other in labels):
            names = [bytes(other.tolist()).rstrip(b"\0").decode(errors="replace") for other in labels]
            places = "; ".join(f"rank {rank} is at {name!r}" for rank, name in enumerate(names))
            raise RankFailure(f"the ranks went different ways: {places}")
        return list(slots), [int(count.clone().view(torch.int64)) for count in counts]

    def _guarded(self, label: str, operation: Callable[[], Any]) -> None:
        try:
            operation()
        except RuntimeError as error:
            raise RankFailure(f"this rank waited at {label!r}, and {self._who_is_missing()}") from error

    def _who_is_missing(self) -> str:
        """The ranks that do not say that they, too, wait in vain; why, if they left a word."""
        try:
            self.store.set(f"waiting/{self.rank}", "yes")
            others, end = [rank for rank in range(self.size) if rank != self.rank], time.monotonic() + GRACE
            while time.monotonic() < end:
                if all(self._left(rank) or self.store.check([f"waiting/{rank}"]) for rank in others):
                    break
                time.sleep(0.05)
            left = {rank: word for rank in others if (word := self._left(rank))}
            silent = [r for r in others if r not in left and not self.store.check([f"waiting/{r}"])]
        except RuntimeError:
            return "rank 0, which holds the job together, is gone"
        words = [f"rank {rank} failed ({word})" for rank, word in left.items()]
        words += [f"{_ranks(silent)} did not arrive within {self.timeout:g} s, or died"] if silent else []
        return "; ".join(words) or "the connection between the ranks broke"

    def _left(self, rank: int) -> str:
        return self.store.get(f"failed/{rank}").decode() if self.store.check([f"failed/{rank}"]) else ""


@contextmanager
def joined(*, timeout: float = TIMEOUT) -> Iterator[World]:
    """This process in torchrun's job, or alone when torchrun did not start it. ``current()`` is this world inside.

    Args:
        timeout: seconds that ranks wait for each other before the job ends.

    Raises:
        ValueError: there are more processes on this machine than GPUs.
    """
    global _current
    world = _current = _join(timeout)
    try:
        yield world
    except BaseException as error:  # nothing is taken down in order: that would wait for ranks that may not come
        if world.store is not None and not isinstance(error, RankFailure):
            with suppress(RuntimeError):  # the store may be gone too
                world.store.set(f"failed/{world.rank}", f"{type(error).__name__}: {error}")
        raise
    finally:
        _current = None
    if dist.is_initialized():
        dist.destroy_process_group()


def current() -> World:
    """The world that this process has joined; alone if it has joined none."""
    return _current or World(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def _join(timeout: float) -> World:
    if "RANK" not in os.environ:
        return current()
    local_rank, device, backend = int(os.environ["LOCAL_RANK"]), torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise ValueError(
                f"process {local_rank} of this machine has no GPU, there are {torch.cuda.device_count()}: "
                f"start with --nproc-per-node={torch.cuda.device_count()}, or with CUDA_VISIBLE_DEVICES= on the CPU"
            )
        device, backend = torch.device("cuda", local_rank), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    limit = timedelta(seconds=timeout)
    store, rank, size = next(dist.rendezvous("env://", timeout=limit))
    store = _unwritten(store, rank, size, timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    return World(rank, size, local_rank, device, timeout, dist.PrefixStore("grpo", store))


def _unwritten(store: dist.Store, rank: int, size: int, timeout: float) -> dist.Store:
    """A corner of torchrun's store for this attempt alone.

    torchrun keeps the store when it restarts ranks (torch 2.13), and a process group made in it would call the
    addresses of ranks that are dead. How often it restarted is no name for an attempt: on several machines each counts
    for itself. So rank 0 draws a name, and hands it to every rank that answers in this attempt.
    """
    me = uuid.uuid4().hex
    if rank > 0:
        store.set(f"hello/{rank}", me)
        attempt = store.get(f"attempt/{me}").decode()  # waits for it
        store.set(f"here/{attempt}/{me}", "")
        store.get(f"complete/{attempt}")
        return dist.PrefixStore(attempt, store)
    missing, end = list(range(1, size)), time.monotonic() + timeout
    while missing:
        for other in list(missing):
            if store.check([f"hello/{other}"]):
                name = store.get(f"hello/{other}").decode()  # perhaps of an earlier attempt: then it never answers
                store.set(f"attempt/{name}", me)
                if store.check([f"here/{me}/{name}"]):
                    missing.remove(other)
        if time.monotonic() > end:
            raise RankFailure(f"{_ranks(missing)} did not join within {timeout:g} s")
        time.sleep(0.02)
    store.set(f"complete/{me}", "")
    return dist.PrefixStore(me, store)


def _buckets(parameters: list[Tensor]) -> Iterator[list[Tensor]]:
    """Parameters in lots of at most BUCKET bytes (or one parameter), each lot of one dtype and device."""
    lot: list[Tensor] = []
    size = 0
    for parameter in parameters:
        alike = not lot or (parameter.dtype, parameter.device) == (lot[0].dtype, lot[0].device)
        if lot and (not alike or size + parameter.nbytes > BUCKET):
            yield lot
            lot, size = [], 0
        lot.append(parameter)
        size += parameter.nbytes
    if lot:
        yield lot


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
