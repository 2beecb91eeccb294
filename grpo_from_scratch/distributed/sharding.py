"""How the weights of a model lie on the ranks: whole on each (``ddp``), or a slice of every weight (``fsdp``).

A sharded weight is a DTensor. Every forward and backward pass through sharded weights is of all ranks together, so all
have to make as many; inside ``gathered`` the weights are whole and each rank runs by itself.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from grpo_from_scratch.distributed.process_group import World

STRATEGIES = ("ddp", "fsdp")


def shard(module: nn.Module, strategy: str, world: World, *, blocks: Iterable[str], method: str = "forward") -> None:
    """Lay the module's weights, the same on every rank, onto the ranks. Make its optimizer afterwards.

    ``ddp`` leaves them as they are: ``World.sum_gradients`` keeps the ranks together. ``fsdp`` slices every weight
    along its first dimension (``fully_shard``); weights, gradients and optimizer state take 1/size of the memory, and
    a block is put together only while it computes. Gradients are summed over ranks, not averaged.

    Args:
        blocks: names of the classes that are put together one at a time: the model's decoder layers.
        method: how the module is called when it is trained.
    """
    if strategy == "ddp" or world.size == 1:
        return
    mesh = init_device_mesh(world.device.type, (world.size,))
    for part in [m for m in module.modules() if type(m).__name__ in set(blocks)] + [module]:
        fully_shard(part, mesh=mesh)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum
    if method != "forward":
        register_fsdp_forward_method(module, method)


@contextmanager
def gathered(module: nn.Module) -> Iterator[None]:
    """Whole weights on every rank inside, as sampling needs them: each rank's replies end when they end.

    Costs the memory of the whole weights while it lasts, and one exchange instead of one for each token.
    """
    parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.reshard()
            part.set_reshard_after_forward(
                part is not parts[0], recurse=False
            )  # as fully_shard has it for the outermost


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds a part of the tensor, whose gradients are summed by what sharded it."""
    return isinstance(tensor, DTensor)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients to a common norm of at most ``max_norm``. Returns the norm before, over all ranks' parts.

    Sharded and whole gradients do not go into one operation, so each kind has its norm: √(Σ norm²) is that of all.
    """
    kinds: dict[Any, list[Tensor]] = {}
    for p in parameters:
        if p.grad is not None:
            kinds.setdefault((p.device_mesh, p.placements) if is_sharded(p) else None, []).append(p)
    norms = [get_total_norm([p.grad for p in alike]) for alike in kinds.values()]
    norms = [norm.full_tensor() if is_sharded(norm) else norm for norm in norms]
    total = norms[0] if len(norms) == 1 else torch.tensor(math.hypot(*(float(norm) for norm in norms)))
    for alike in kinds.values():
        clip_grads_with_norm_(alike, max_norm, total)
    return total


def whole(tree: Any) -> Any:
    """The tree of dicts and lists with every sharded tensor in full: to be called on all ranks."""
    if isinstance(tree, dict):
        return {name: whole(child) for name, child in tree.items()}
    if isinstance(tree, list | tuple):
        return [whole(child) for child in tree]
    return tree.full_tensor() if isinstance(tree, DTensor) else tree


def placed_like(tensor: Tensor, target: Tensor) -> Tensor:
    """A whole tensor, laid onto the ranks as ``target`` is."""
    if not is_sharded(target):
        return tensor
    return distribute_tensor(tensor.to(target.device), target.device_mesh, target.placements, src_data_rank=None)


def load_whole(module: nn.Module, state: dict[str, Tensor]) -> None:
    """Take over a state of whole tensors."""
    module.load_state_dict({name: placed_like(state[name], target) for name, target in module.state_dict().items()})
