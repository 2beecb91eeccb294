"""Hands a model's attention over to a layout, through transformers' AttentionInterface.

A packed forward shows every token-wise layer one row without padding. Only attention has to know which token belongs
to which sequence, so the layout travels as an extra forward keyword down to the attention function registered here.
The mask function registered beside it returns transformers' own predicate "may this position see that one?" instead of
a tensor: the layout evaluates it on positions within a sequence, so sliding windows and chunks need no extra case.
"""

import inspect
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

PREFIX = "shared_prefix_"  # in front of the name of the implementation the model had
# What models hand down that attention has no use for (the predicate knows the window). Anything else is refused.
HARMLESS = {"output_router_logits", "position_ids", "sliding_window", "use_cache"}
Predicate = Callable[[int, int, Tensor, Tensor], Tensor]  # (batch, head, query position, key position) -> bool

_packing: ContextVar[bool] = ContextVar("packing", default=False)  # is the forward pass now running a packed one?


class Unsupported(Exception):
    """The model needs something from its attention that a packed forward does not do."""


@dataclass(frozen=True)
class Scoring:
    """How a layer turns query-key products into weights: softmax(softcap(scaling * qk)) with one sink logit a head."""

    scaling: float
    softcap: float | None = None
    sinks: Tensor | None = None  # (H,)


class Layout(Protocol):
    """Knows which token of the packed row belongs where."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, allowed: Predicate, how: Scoring) -> Tensor:
        """q (N, H, D), k (N, K, D), v (N, K, E) of the packed row -> (N, H, E)."""


def attach(lm: nn.Module) -> None:
    """Let packed forwards through this model's attention. Any other forward pass runs exactly as before.

    It stays attached, since under gradient checkpointing backward calls the attention again and must find the same one:
    do not call ``set_attn_implementation`` between a forward pass and its backward.

    Raises:
        Unsupported: the model does not go through AttentionInterface.
    """
    base = lm.config._attn_implementation.removeprefix(PREFIX)
    AttentionInterface.register(PREFIX + base, _attention_beside(base))
    AttentionMaskInterface.register(PREFIX + base, _mask_beside(base))
    lm.set_attn_implementation(PREFIX + base)  # only logs a warning when the model cannot
    if lm.config._attn_implementation != PREFIX + base:
        raise Unsupported(f"{type(lm).__name__} does not use transformers' AttentionInterface")


def detach(lm: nn.Module) -> None:
    """Undo ``attach``."""
    if lm.config._attn_implementation.startswith(PREFIX):
        lm.set_attn_implementation(lm.config._attn_implementation.removeprefix(PREFIX))


def packed_forward(model: nn.Module, ids: Tensor, positions: Tensor, layout: Layout, **options):
    """Run ``model`` on one packed row: token ids (N,) at their positions (N,) within their own sequences.

    A plain function of the model: wrap it in DistributedDataParallel and gradients are averaged as ever.
    """
    # Ones, rather than no mask: without one, transformers looks for packed sequences by itself.
    ones = torch.ones(1, len(ids), dtype=torch.long, device=ids.device)
    token = _packing.set(True)
    try:
        return model(
            input_ids=ids[None],
            position_ids=positions[None],
            attention_mask=ones,
            use_cache=False,
            shared_prefix=layout,
            **options,
        )
    finally:
        _packing.reset(token)


def _attention_beside(base: str) -> Callable:
    def attention(module, query, key, value, attention_mask, *args, shared_prefix: Layout | None = None, **options):
        if shared_prefix is None:
            plain = _eager(module) if base == "eager" else AttentionInterface()[base]
            return plain(module, query, key, value, attention_mask, *args, **options)
        return _packed_attention(module, query, key, value, attention_mask, shared_prefix, *args, **options), None

    return attention


def _packed_attention(
    module, query, key, value, allowed, layout, dropout=0.0, scaling=None, softcap=None, s_aux=None, **options
) -> Tensor:
    """query (1, H, N, D), key (1, K, N, D), value (1, K, N, E) -> (1, N, H, E); refuses what it does not understand."""
    unknown = sorted(name for name, value in options.items() if value is not None and name not in HARMLESS)
    if unknown or dropout or not callable(allowed):
        raise Unsupported(f"{type(module).__name__} asks its attention for {unknown or 'dropout or a mask of its own'}")
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise Unsupported(f"{type(module).__name__} reshapes the row before its attention")
    q, k, v = (heads[0].transpose(0, 1) for heads in (query, key, value))
    how = Scoring(q.shape[-1] ** -0.5 if scaling is None else scaling, softcap, s_aux)
    return layout.attend(module.layer_idx, q, k, v, allowed, how)[None]


def _mask_beside(base: str) -> Callable:
    def mask(*, mask_function: Predicate, use_vmap: bool = False, **options):
        if not _packing.get():
            return AttentionMaskInterface()[base](mask_function=mask_function, use_vmap=use_vmap, **options)
        if use_vmap:
            raise Unsupported("the model lays a mask of its own over the causal one")
        return mask_function

    return mask


def _eager(module: nn.Module) -> Callable:
    """The module's own eager attention: each modeling file has one, and its forward finds it among its globals."""
    return inspect.unwrap(type(module).forward).__globals__["eager_attention_forward"]
