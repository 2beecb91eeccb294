"""The packed row [all prompts | all completions]: each prompt is computed once for its whole group.

Shapes: P prompts, G completions a prompt at most, B in all, T query tokens, S own keys, L longest prompt; H query heads
are K key heads times R; D and E are the widths of a key and of a value. Padding exists inside attention only, where
tokens lie on a grid (P, G, T); a group with fewer than G completions leaves cells empty.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from grpo_from_scratch.policy.attention import Predicate, Scoring, packed_forward
from grpo_from_scratch.policy.rollout import Rollout

COMPACT_BELOW = 0.75  # live share of the stored rows below which dropping the finished ones pays for the copy
BLOCK = 32  # a decoder's own keys are read in blocks: products over fewer run in a slower kernel
SHORT = 128  # keys up to which a CPU is faster without the fused kernel in 16 bits, whose scores take little memory


class PackedRollout:
    """A rollout as one row for one forward pass, and where in its output the n predictions stand.

    The row holds each completion without its last token, which predicts nothing. A prompt's last token predicts the
    first token of all its completions, so there are n = P + (completion tokens - B) predictions.
    """

    def __init__(self, rollout: Rollout):
        inputs = rollout.completion_mask[:, 1:]  # (B, T): token t goes in where there is a token t + 1 to predict
        ids, index, device = rollout.completion_ids[:, :-1], rollout.prompt_index, rollout.device
        self.prompts = Prompts(rollout.prompt_ids, rollout.prompt_mask)
        self.steps = torch.arange(inputs.shape[1], device=device)
        positions = self.prompts.lengths[index, None] + self.steps  # (B, T)
        self.ids = torch.cat([self.prompts.ids, ids[inputs]])  # (N,)
        self.positions = torch.cat([self.prompts.positions, positions[inputs]])
        self.first = len(self.prompts.ids)  # place of the first completion token
        self.keep = torch.cat([self.prompts.ends, torch.arange(self.first, len(self.ids), device=device)])  # (n,)
        after = len(self.prompts.lengths) - 1 + inputs.flatten().cumsum(0).view(inputs.shape)  # (B, T)
        self.source = torch.where(rollout.completion_mask, torch.cat([index[:, None], after], 1), 0)  # (B, T + 1)
        rank, group = rank_in_group(index, len(self.prompts.lengths))
        rows = index * group + rank
        cells = (rows[:, None] * len(self.steps) + self.steps)[inputs]
        self.grid = Grid((len(self.prompts.lengths), group, len(self.steps)), cells)
        self.masks: dict[tuple[Predicate, torch.device], Tensor] = {}

    def logits(self, model: nn.Module) -> Tensor:
        """(n, V), differentiable."""
        return self.rows(
            packed_forward(
                model, self.ids, self.positions, self, logits_to_keep=for_any_device(model, self.keep)
            ).logits
        )

    def hidden(self, body: nn.Module) -> Tensor:
        """(n, X) last hidden states of the model's body."""
        return self.rows(packed_forward(body, self.ids, self.positions, self).last_hidden_state)

    def rows(self, full: Tensor) -> Tensor:
        """(1, n or N, X) -> (n, X)."""
        return kept(full, self.keep)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, allowed: Predicate, how: Scoring) -> Tensor:
        """The layout's part in each layer: (N, heads, ...) -> (N, H, E)."""
        # Clones: as views, what attention saves of the prompts for backward would keep the whole row alive.
        of_prompts, prefix = self.prompts.attend(*(heads[: self.first].clone() for heads in (q, k, v)), allowed, how)
        if len(self.grid.cells) == 0:
            return of_prompts
        q, k, v = (self.grid.spread(heads[self.first :]) for heads in (q, k, v))
        here = (allowed, q.device)
        if here not in self.masks:
            own = self.prompts.lengths[:, None] + self.steps  # (P, T)
            self.masks[here] = additive(self.prompts.seen_after(allowed, own, own), q, k)
        return torch.cat([of_prompts, self.grid.gather(attend(q, k, v, self.masks[here], how, prefix))])


class PackedDecoder:
    """Next-token logits: prompts packed, then one token of each live row. Keys and values live here, in no Cache."""

    def __init__(
        self, lm: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor, prompt_index: Tensor, max_new_tokens: int
    ):
        self.lm, self.index, self.capacity = lm, prompt_index, max_new_tokens
        self.prompts = Prompts(prompt_ids, prompt_mask)
        self.own_positions = self.prompts.lengths[:, None] + torch.arange(max_new_tokens, device=prompt_ids.device)
        self.count = 0  # own tokens stored
        self.prefix: dict[int, tuple[Tensor, Tensor]] = {}  # by layer: keys (P, K, L, D) and values (P, K, L, E)
        self.own: dict[int, list[Tensor]] = {}  # by layer: keys (P, K, G, capacity, D) and values
        self._lay_out()

    def prefill(self) -> Tensor:
        """Logits after each prompt (P, V)."""
        return self._logits(self.prompts.ids, self.prompts.positions, self.prompts.ends)

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to each live row: (b,) -> logits of the next one (b, V)."""
        positions = self.prompts.lengths[self.index] + self.count
        self.count += 1
        self.width = min(self.capacity, -(-self.count // BLOCK) * BLOCK)
        self.masks: dict[tuple[Predicate, torch.device], Tensor] = {}
        return self._logits(tokens, positions, torch.arange(len(tokens), device=tokens.device))

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows of the current ones only."""
        self.index, rank = self.index[rows], self.rank[rows]
        if len(rows) > COMPACT_BELOW * self.stored:  # the finished rows' cells stay, unused
            self.rank = rank
            self._use_cells()
            return
        self._lay_out()
        for stores in self.own.values():
            for place, old in enumerate(stores):
                new = old.new_zeros(*old.shape[:2], self.group, *old.shape[3:])
                index, was, is_now = (places.to(old.device) for places in (self.index, rank, self.rank))
                new[index, :, is_now] = old[index, :, was]
                stores[place] = new

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, allowed: Predicate, how: Scoring) -> Tensor:
        """The layout's part in each layer: (N, heads, ...) -> (N, H, E)."""
        if self.count == 0:
            out, self.prefix[layer] = self.prompts.attend(q, k, v, allowed, how)
            return out
        q, *own = (self.grid.spread(heads) for heads in (q, k, v))
        if layer not in self.own:
            self.own[layer] = [heads.new_zeros(*heads.shape[:3], self.capacity, heads.shape[4]) for heads in own]
        for store, heads in zip(self.own[layer], own, strict=True):
            store[:, :, :, self.count - 1] = heads[:, :, :, 0]
        here = (allowed, q.device)
        if here not in self.masks:  # what the newest tokens see; the cells of tokens to come lie in their future
            newest, own_positions = self.own_positions[:, self.count - 1, None], self.own_positions[:, : self.width]
            self.masks[here] = additive(self.prompts.seen_after(allowed, newest, own_positions), q, own[0])
        keys, values = (store[:, :, :, : self.width] for store in self.own[layer])
        return self.grid.gather(attend(q, keys, values, self.masks[here], how, self.prefix[layer]))

    def _lay_out(self) -> None:
        """A grid just large enough for the live rows."""
        self.rank, self.group = rank_in_group(self.index, len(self.prompts.lengths))
        self.stored = len(self.index)
        self._use_cells()

    def _use_cells(self) -> None:
        self.grid = Grid((len(self.prompts.lengths), self.group, 1), self.index * self.group + self.rank)

    @torch.inference_mode()
    def _logits(self, ids: Tensor, positions: Tensor, keep: Tensor) -> Tensor:
        return kept(
            packed_forward(self.lm, ids, positions, self, logits_to_keep=for_any_device(self.lm, keep)).logits, keep
        )


class Prompts:
    """P prompts packed into one row, each attending to itself."""

    def __init__(self, ids: Tensor, mask: Tensor):
        self.ids, self.lengths = ids[mask], mask.sum(1)  # (Np,), (P,)
        self.ends = self.lengths.cumsum(0) - 1  # (P,) places of the last tokens in the row
        self.positions = (mask.cumsum(1) - 1)[mask]  # (Np,)
        self.places = torch.arange(int(self.lengths.max()), device=ids.device)  # (L,)
        self.real = self.places < self.lengths[:, None]  # (P, L)
        cells = self.positions + len(self.places) * mask.nonzero()[:, 0]
        self.grid = Grid((len(ids), 1, len(self.places)), cells)
        self.masks: dict[tuple[Predicate, torch.device], Tensor] = {}

    def attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Predicate, how: Scoring):
        """-> outputs (Np, H, E), and the keys (P, K, L, D) and values (P, K, L, E) that completions will see."""
        q, k, v = (self.grid.spread(heads) for heads in (q, k, v))
        here = (allowed, q.device)
        if here not in self.masks:  # empty cells lie to the right of their prompt, in every real token's future
            self.masks[here] = additive(allowed(0, 0, self.places[:, None], self.places)[None], q, k)
        out = self.grid.gather(attend(q, k, v, self.masks[here], how))
        return out, (k[:, :, 0].contiguous(), v[:, :, 0].contiguous())

    def seen_after(self, allowed: Predicate, queries: Tensor, own: Tensor) -> Tensor:
        """Positions of queries (P, T) and of keys after the prompt (P, S) -> bool (P, T, L + S)."""
        of_prompt = allowed(0, 0, queries[:, :, None], self.places) & self.real[:, None]
        return torch.cat([of_prompt, allowed(0, 0, queries[:, :, None], own[:, None])], -1)


class Grid:
    """Where n packed tokens lie among the (P, G, T) cells that attention works on."""

    def __init__(self, shape: tuple[int, int, int], cells: Tensor):
        """cells: (n,) each token's cell, counted along (P, G, T)."""
        self.shape, self.cells, self.size = shape, cells, shape[0] * shape[1] * shape[2]
        in_order = torch.arange(len(cells), device=cells.device)
        self.tokens = cells.new_zeros(self.size)  # each cell's token; an empty one repeats the first
        self.tokens[cells] = in_order
        self.full = len(cells) == self.size and torch.equal(cells, in_order)

    def spread(self, heads: Tensor) -> Tensor:
        """(n, heads, X) -> (P, heads, G, T, X). No token sees an empty cell, so it may hold what it will."""
        if not self.full:
            heads = heads.index_select(0, self.tokens.to(heads.device))
        return heads.reshape(*self.shape, *heads.shape[1:]).permute(0, 3, 1, 2, 4)

    def gather(self, grid: Tensor) -> Tensor:
        """(P, K, G, R, T, E) -> (n, H, E)."""
        heads = grid.permute(0, 2, 4, 1, 3, 5).reshape(self.size, -1, grid.shape[-1])
        return heads if self.full else heads.index_select(0, self.cells.to(heads.device))


def for_any_device(model: nn.Module, places: Tensor) -> Tensor:
    """Places that a model indexes its last hidden states with, wherever these are: the CPU's are taken by all devices.

    accelerate must leave them there (``placement.place`` tells it to).
    """
    return places.cpu() if hasattr(model, "hf_device_map") else places


def kept(full: Tensor, places: Tensor) -> Tensor:
    """(1, n or N, X) -> (n, X), on the places' device: a model need not obey ``logits_to_keep``."""
    rows = full[0] if full.shape[1] == len(places) else full[0, places.to(full.device)]
    return rows.to(places.device)


def rank_in_group(index: Tensor, prompts: int) -> tuple[Tensor, int]:
    """index (B,), each row's prompt -> its place among the rows of its prompt (B,), and the largest group's size."""
    members = (index[:, None] == torch.arange(prompts, device=index.device)).cumsum(0)  # (B, P)
    return members.gather(1, index[:, None])[:, 0] - 1, int(members[-1].max())


def additive(seen: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Which keys each query sees, bool (P, T, S) -> 0 or -inf (P, 1, 1, R * T, S), for queries and keys on the grid.

    Made once a forward pass for each predicate and device, in the queries' dtype: attention would convert a bool mask
    in every layer, and keep each for backward.
    """
    mask = torch.where(seen, 0.0, -torch.inf).to(q.device, q.dtype)
    return mask.repeat(1, q.shape[1] // k.shape[1], 1)[:, None, None]


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, how: Scoring, prefix: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Every row attends to [its group's prompt | its own tokens].

    Args:
        q, k, v: (P, H, G, T, D), (P, K, G, S, D), (P, K, G, S, E).
        mask: from ``additive``, broadcast over (P, K, G, R * T, L + S).
        prefix: the prompt's keys (P, K, L, D) and values (P, K, L, E).

    Returns:
        (P, K, G, R, T, E).
    """
    # v says how many bits there are: q and k may have been rotated in 32.
    short = q.device.type == "cpu" and v.dtype.itemsize == 2 and mask.shape[-1] <= SHORT
    fused = q.shape[3] > 1 and how.softcap is None and how.sinks is None and not short
    q = q.unflatten(1, (k.shape[1], -1)).transpose(2, 3)  # (P, K, G, R, T, D)
    return (_attend_fused if fused else _attend_cascade)(q, k, v, mask, how, prefix)


def _attend_fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, how: Scoring, prefix) -> Tensor:
    """PyTorch's fused attention never stores the scores, which is worth repeating the prompt's keys in the group."""
    P, K, G, R, T, _ = q.shape
    dtype = q.dtype
    if prefix:
        k, v = (
            torch.cat([shared[:, :, None].expand(-1, -1, G, -1, -1), own], 3)
            for shared, own in zip(prefix, (k, v), strict=True)
        )
    # All queries of a key head are its rows, so that a model with grouped queries needs no repeated keys either.
    q, k, v = q.reshape(P, K * G, R * T, -1), k.flatten(1, 2), v.flatten(1, 2)
    if q.device.type == "cpu":  # its kernel runs backward three times as fast in 32 bits as in 16
        q, k, v = (heads.to(torch.promote_types(dtype, torch.float32)) for heads in (q, k, v))
    with torch.autocast("cpu", enabled=False):  # which would choose 16
        mask = mask[:, :, 0].to(q.dtype)
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=how.scaling)
    return out.to(dtype).view(P, K, G, R, T, -1)


def _attend_cascade(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, how: Scoring, prefix) -> Tensor:
    """The prompt's keys and values are never repeated: one product with all queries of a group, one with each row's."""
    P, K, G, R, T, _ = q.shape
    q = q.reshape(P, K, G, R * T, -1)
    scores = q @ k.transpose(3, 4)  # (P, K, G, R * T, S)
    if prefix:
        of_prompt = q.flatten(2, 3) @ prefix[0].transpose(2, 3)  # (P, K, G * R * T, L)
        scores = torch.cat([of_prompt.view(P, K, G, R * T, -1), scores], -1)
    scores = scores.float() * how.scaling
    if how.softcap is not None:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    scores = scores + mask
    if how.sinks is not None:
        sinks = how.sinks.float().view(K, 1, R, 1).expand(P, K, G, R, T).reshape(P, K, G, R * T, 1)
        scores = torch.cat([scores, sinks], -1)
    weights = scores.softmax(-1).to(v.dtype)
    split = weights.shape[-1] - k.shape[3] - (how.sinks is not None)  # a sink takes its share and gives nothing
    out = weights[..., split : split + k.shape[3]] @ v  # (P, K, G, R * T, E)
    if prefix:
        out = out + (weights[..., :split].flatten(2, 3) @ prefix[1]).view(out.shape)
    return out.view(P, K, G, R, T, -1)
