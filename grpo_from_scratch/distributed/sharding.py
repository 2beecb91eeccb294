"""How the weights of a model lie on the ranks.

``ddp``: whole on each, and each works on rows of its own. ``fsdp``: a slice of every weight on each, which also works
on rows of its own. ``tensor``: a part of every layer on each, and all work on the same rows together. (``layers``: one
process with several devices, see ``placement``.)

A sliced or split weight is a DTensor. Every pass through such weights is of all ranks together, so all have to make as
many; inside ``gathered`` fsdp's weights are whole and each rank runs by itself.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from grpo_from_scratch.distributed.process_group import World

STRATEGIES = ("ddp", "fsdp", "tensor", "layers")
STYLES = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}  # by their names in transformers' plans
WHOLE = ("embedding_rowwise", "colwise_gather_output")  # embedding and head: often tied, so they are left as they are


def rows_of(world: World, strategy: str) -> World:
    """The world over which rows are spread: under ``tensor`` all ranks work on all rows, as one process would.

    Raises:
        ValueError: ``layers`` is for one process.
    """
    if strategy == "layers" and world.size > 1:
        raise ValueError(
            f"strategy 'layers' spreads the model of one process over its devices, and there are {world.size} "
            "processes: start one, or choose 'ddp' or 'fsdp'"
        )
    return replace(world, rank=0, size=1) if strategy == "tensor" else world


def shard(
    module: nn.Module,
    strategy: str,
    world: World,
    *,
    blocks: Iterable[str],
    plan: dict[str, str],
    method: str = "forward",
) -> None:
    """Lay the module's weights, the same on every rank, onto the ranks. Make its optimizer afterwards.

    ``ddp`` leaves them as they are: ``World.sum_gradients`` keeps the ranks together. ``fsdp`` slices every weight
    along its first dimension (``fully_shard``); weights, gradients and optimizer state take 1/size of the memory, and
    a block is put together only while it computes. Gradients are summed over ranks, not averaged. ``tensor`` splits the
    layers as the plan says: heads and hidden units are spread over ranks, their results added up.

    Args:
        blocks: names of the classes that ``fsdp`` puts together one at a time: the model's decoder layers.
        plan: {pattern of a submodule's name: transformers' name of how ``tensor`` splits it}.
        method: how the module is called when it is trained.

    Raises:
        ValueError: ``tensor`` cannot split this model.
    """
    if strategy == "ddp" or world.size == 1:
        return
    styles = {name: STYLES[style]() for name, style in split_styles(plan).items()} if strategy == "tensor" else {}
    mesh = init_device_mesh(world.device.type, (world.size,))
    if strategy == "tensor":
        parallelize_module(module, mesh, styles)
        return
    for part in [m for m in module.modules() if type(m).__name__ in set(blocks)] + [module]:
        fully_shard(part, mesh=mesh)
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum
    if method != "forward":
        register_fsdp_forward_method(module, method)


def split_styles(plan: dict[str, str]) -> dict[str, str]:
    """The plan without what stays whole.

    Raises:
        ValueError: nothing is left, or a style that is not in STYLES.
    """
    splits = {name: style for name, style in plan.items() if style not in WHOLE}
    unknown = sorted(set(splits.values()) - set(STYLES))
    if unknown or not splits:
        what = f"has styles not known here ({', '.join(unknown)})" if unknown else "says nothing of splitting it"
        raise ValueError(f"strategy 'tensor' cannot take this model, whose plan in transformers {what}: choose 'fsdp'")
    return splits


def check_heads(config: Any, world: World, strategy: str) -> None:
    """Refuse to split attention heads unevenly.

    Args:
        config: transformers' of the model; one without attention has no heads to look at, and no plan either.

    Raises:
        ValueError: the number of key heads is no multiple of the number of ranks.
    """
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", 0)
    if strategy == "tensor" and heads % world.size:
        raise ValueError(
            f"strategy 'tensor' spreads attention heads over ranks, and {heads} key heads do not go evenly on "
            f"{world.size} processes: take a number that divides {heads}, or strategy 'fsdp'"
        )


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
            part.set_reshard_after_forward(part is not parts[0], recurse=False)  # fully_shard's own choice


def is_sharded(tensor: Tensor) -> bool:
    """Whether this rank holds a part of the tensor, whose gradients are summed by what sharded it."""
    return isinstance(tensor, DTensor)


def clip_gradients(parameters: Iterable[Tensor], max_norm: float) -> Tensor:
    """Scale all gradients to a common norm of at most ``max_norm``. Returns the norm before, over all ranks' parts.

    Each kind of gradient has its norm: √(Σ norm²) is that of all.
    """
    kinds = by_kind(parameters)
    norms = [get_total_norm([p.grad for p in alike]) for alike in kinds]
    norms = [norm.full_tensor() if is_sharded(norm) else norm for norm in norms]
    total = norms[0] if len(norms) == 1 else torch.tensor(math.hypot(*(float(norm) for norm in norms)))
    for alike in kinds:
        clip_grads_with_norm_(alike, max_norm, total)
    return total


def by_kind(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """Parameters with gradients, in lots that may go into one operation: whole ones, and each way of being sharded."""
    kinds: dict[Any, list[Tensor]] = {}
    for p in parameters:
        if p.grad is not None:
            kinds.setdefault((p.device_mesh, p.placements) if is_sharded(p) else None, []).append(p)
    return list(kinds.values())


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
    """Take over the trained weights, in whole tensors; what is not trained may stay as it is.

    Raises:
        ValueError: the state lacks a trained weight.
        LookupError: it has one that the module does not have.
    """
    targets, trained = module.state_dict(), [n for n, p in module.named_parameters() if p.requires_grad]
    if missing := [name for name in trained if name not in state]:
        raise ValueError(f"it lacks {len(missing)} weights, the first of them {missing[0]}")
    placed = {name: placed_like(tensor, targets[name]) for name, tensor in state.items()}
    module.load_state_dict(placed, strict=False)
