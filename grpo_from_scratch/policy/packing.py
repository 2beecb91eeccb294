"""The packed row [all prompts | all completions]: each prompt is computed once for its whole group.

Shapes: P prompts, G completions a prompt at most, B in all, T query tokens, S own keys, L longest prompt; H query heads
are K key heads times R; D and E are the widths of a key and of a value. Padding exists inside attention only, where
tokens lie on a grid (P, G, T); a group with fewer than G completions leaves cells empty.
"""

import torch
from torch import Tensor, nn

from grpo_from_scratch.policy.attention import Predicate, Scoring, packed_forward
from grpo_from_scratch.policy.rollout import Rollout

COMPACT_BELOW = 0.75  # live share of the stored rows below which dropping the finished ones pays for the copy


class PackedRollout:
    """A rollout as one row for one forward pass, and where in its output the n predictions stand.

    The row holds each completion without its last token, which predicts nothing. A prompt's last token predicts the
    first token of all its completions, so there are n = P + (completion tokens - B) predictions.
    """

    def __init__(self, rollout: Rollout):
        inputs = rollout.completion_mask[:, 1:]  # (B, T): token t goes in where there is a token t + 1 to predict
        ids = torch.where(inputs, rollout.completion_ids[:, :-1], 0)
        index, device = rollout.prompt_index, rollout.device
        self.prompts = Prompts(rollout.prompt_ids, rollout.prompt_mask)
        self.rank, self.group = rank_in_group(index, len(rollout.prompt_ids))
        self.steps = torch.arange(inputs.shape[1], device=device)
        positions = self.prompts.lengths[index, None] + self.steps  # (B, T)
        self.ids = torch.cat([self.prompts.ids, ids[inputs]])  # (N,)
        self.positions = torch.cat([self.prompts.positions, positions[inputs]])
        self.cells = (((index * self.group + self.rank)[:, None] * len(self.steps)) + self.steps)[inputs]
        self.keep = torch.cat([self.prompts.ends, torch.arange(len(self.prompts.ids), len(self.ids), device=device)])
        after = inputs.flatten().cumsum(0).view(inputs.shape) - 1 + len(self.prompts.lengths)
        self.source = torch.where(rollout.completion_mask, torch.cat([index[:, None], after], 1), 0)  # (B, T + 1)
        self.masks: dict[Predicate, Tensor] = {}

    def logits(self, model: nn.Module) -> Tensor:
        """(n, V), differentiable."""
        return self.rows(packed_forward(model, self.ids, self.positions, self, logits_to_keep=self.keep).logits)

    def hidden(self, body: nn.Module) -> Tensor:
        """(n, X) last hidden states of the model's body."""
        return self.rows(packed_forward(body, self.ids, self.positions, self).last_hidden_state)

    def rows(self, full: Tensor) -> Tensor:
        """(1, n or N, X) -> (n, X): not every module is given ``logits_to_keep``."""
        return full[0] if full.shape[1] == len(self.keep) else full[0, self.keep]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, allowed: Predicate, how: Scoring) -> Tensor:
        """The layout's part in each layer: (N, heads, ...) -> (N, H, E)."""
        cut, shape = len(self.prompts.ids), (len(self.prompts.lengths), self.group, len(self.steps))
        of_prompts, prefix = self.prompts.attend(q[:cut], k[:cut], v[:cut], allowed, how)
        if len(self.cells) == 0:
            return of_prompts
        qc, kc, vc = (to_grid(heads[cut:], self.cells, shape) for heads in (q, k, v))
        grid = attend(qc, kc, vc, self.mask(allowed), how, prefix)
        return torch.cat([of_prompts, from_grid(grid, self.cells)])

    def mask(self, allowed: Predicate) -> Tensor:
        """What completion tokens see: additive (P, 1, 1, 1, T, L + T), one for each predicate."""
        if allowed not in self.masks:
            queries = self.prompts.lengths[:, None] + self.steps  # (P, T)
            self.masks[allowed] = self.prompts.mask_after(allowed, queries, queries)
        return self.masks[allowed]


class PackedDecoder:
    """Next-token logits: the prompts packed, then one token of each live row. Keys and values live here, in no Cache."""

    def __init__(
        self, lm: nn.Module, prompt_ids: Tensor, prompt_mask: Tensor, prompt_index: Tensor, max_new_tokens: int
    ):
        self.lm, self.index, self.capacity = lm, prompt_index, max_new_tokens
        self.prompts = Prompts(prompt_ids, prompt_mask)
        self.rank, self.group = rank_in_group(prompt_index, len(prompt_ids))
        self.stored = len(prompt_index)  # rows the grid was laid out for
        self.prefix: dict[int, tuple[Tensor, Tensor]] = {}  # by layer: keys (P, K, L, D) and values (P, K, L, E)
        self.own: dict[int, tuple[Tensor, Tensor]] = {}  # by layer: keys (P, K, G, capacity, D) and values
        self.count = 0  # own tokens stored

    def prefill(self) -> Tensor:
        """Logits after each prompt (P, V)."""
        return self._logits(self.prompts.ids, self.prompts.positions, self.prompts.ends)

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to each live row: (b,) -> logits of the next one (b, V)."""
        positions = self.prompts.lengths[self.index] + self.count
        self.count, self.masks = self.count + 1, {}
        return self._logits(tokens, positions, torch.arange(len(tokens), device=tokens.device))

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows of the current ones only."""
        self.index, rank = self.index[rows], self.rank[rows]
        if len(rows) > COMPACT_BELOW * self.stored:
            self.rank = rank  # the finished rows' cells stay, unused
            return
        self.rank, self.group = rank_in_group(self.index, len(self.prompts.lengths))
        self.stored = len(rows)
        for layer, pair in self.own.items():
            self.own[layer] = tuple(self._moved(old, rank) for old in pair)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, allowed: Predicate, how: Scoring) -> Tensor:
        """The layout's part in each layer: (N, heads, ...) -> (N, H, E)."""
        if self.count == 0:
            out, self.prefix[layer] = self.prompts.attend(q, k, v, allowed, how)
            return out
        if layer not in self.own:
            self.own[layer] = tuple(self._empty(heads) for heads in (k, v))
        for store, heads in zip(self.own[layer], (k, v), strict=True):
            store[self.index, :, self.rank, self.count - 1] = heads
        keys, values = (store[:, :, :, : self.count] for store in self.own[layer])
        cells = self.index * self.group + self.rank
        grid = to_grid(q, cells, (len(self.prompts.lengths), self.group, 1))
        return from_grid(attend(grid, keys, values, self._mask(allowed), how, self.prefix[layer]), cells)

    def _mask(self, allowed: Predicate) -> Tensor:
        """What the newest tokens see: additive (P, 1, 1, 1, 1, L + count), built once a step for each predicate."""
        if allowed not in self.masks:
            own = self.prompts.lengths[:, None] + torch.arange(self.count, device=self.index.device)  # (P, count)
            self.masks[allowed] = self.prompts.mask_after(allowed, own[:, -1:], own)
        return self.masks[allowed]

    def _logits(self, ids: Tensor, positions: Tensor, keep: Tensor) -> Tensor:
        logits = packed_forward(self.lm, ids, positions, self, logits_to_keep=keep).logits[0]
        return logits if len(logits) == len(keep) else logits[keep]

    def _empty(self, heads: Tensor) -> Tensor:
        return heads.new_zeros(len(self.prompts.lengths), heads.shape[1], self.group, self.capacity, heads.shape[2])

    def _moved(self, old: Tensor, rank: Tensor) -> Tensor:
        """A store with the live rows moved together; ``rank`` is where they stood."""
        new = old.new_zeros(*old.shape[:2], self.group, *old.shape[3:])
        new[self.index, :, self.rank, : self.count] = old[self.index, :, rank, : self.count]
        return new


class Prompts:
    """P prompts packed into one row, each attending to itself."""

    def __init__(self, ids: Tensor, mask: Tensor):
        self.ids, self.lengths = ids[mask], mask.sum(1)  # (Np,), (P,)
        self.positions = (mask.cumsum(1) - 1)[mask]  # (Np,)
        self.places = torch.arange(int(self.lengths.max()), device=ids.device)  # (L,)
        self.cells = self.positions + len(self.places) * mask.nonzero()[:, 0]
        self.ends = self.lengths.cumsum(0) - 1  # (P,) places of the last tokens in the row

    def attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Predicate, how: Scoring):
        """-> outputs (Np, H, E), and the keys (P, K, L, D) and values (P, K, L, E) that completions will see."""
        shape = (len(self.lengths), 1, len(self.places))
        q, k, v = (to_grid(heads, self.cells, shape) for heads in (q, k, v))
        # Prompts stand at the left of the grid, so a real token cannot see the empty cells: they come later.
        mask = additive(allowed(0, 0, self.places[:, None], self.places))
        return from_grid(attend(q, k, v, mask, how), self.cells), (k[:, :, 0], v[:, :, 0])

    def mask_after(self, allowed: Predicate, queries: Tensor, own: Tensor) -> Tensor:
        """Positions of queries (P, T) and of keys after the prompt (P, S) -> additive (P, 1, 1, 1, T, L + S)."""
        keys = torch.cat([self.places.expand(len(own), -1), own], 1)  # (P, L + S)
        real = torch.cat([self.places < self.lengths[:, None], torch.ones_like(own, dtype=torch.bool)], 1)
        return additive(allowed(0, 0, queries[:, :, None], keys[:, None]) & real[:, None])[:, None, None, None]


def rank_in_group(index: Tensor, prompts: int) -> tuple[Tensor, int]:
    """index (B,), each row's prompt -> its place among the rows of its prompt (B,), and the largest group's size."""
    members = (index[:, None] == torch.arange(prompts, device=index.device)).cumsum(0)  # (B, P)
    return members.gather(1, index[:, None])[:, 0] - 1, int(members[-1].max())


def to_grid(heads: Tensor, cells: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Packed (n, heads, X) -> (P, heads, G, T, X), zeros in empty cells; ``cells`` (n,) counts along (P, G, T)."""
    prompts, group, steps = shape
    grid = heads.new_zeros(prompts * group * steps, *heads.shape[1:]).index_copy(0, cells, heads)
    return grid.view(prompts, group, steps, *heads.shape[1:]).permute(0, 3, 1, 2, 4)


def from_grid(grid: Tensor, cells: Tensor) -> Tensor:
    """(P, H, G, T, E) -> packed (n, H, E)."""
    return grid.permute(0, 2, 3, 1, 4).flatten(0, 2).index_select(0, cells)


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor, how: Scoring, prefix: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Every row attends to [its group's prompt | its own tokens]; the prompt's keys and values are never repeated.

    Args:
        q, k, v: (P, H, G, T, D), (P, K, G, S, D), (P, K, G, S, E).
        mask: additive, broadcast over (P, K, G, R, T, L + S).
        prefix: the prompt's keys (P, K, L, D) and values (P, K, L, E).

    Returns:
        (P, H, G, T, E).
    """
    P, K, G, S, _ = k.shape
    R, T, L = q.shape[1] // K, q.shape[3], prefix[0].shape[2] if prefix else 0
    q = q.unflatten(1, (K, R)).transpose(2, 3).contiguous()  # (P, K, G, R, T, D)
    scores = q.view(P, K, G, R * T, -1) @ k.transpose(3, 4)
    if prefix:
        of_prompt = q.view(P, K, G * R * T, -1) @ prefix[0].transpose(2, 3)
        scores = torch.cat([of_prompt.view(P, K, G, R * T, L), scores], -1)
    weights = _weights(scores.view(P, K, G, R, T, L + S), mask, how).to(v.dtype).reshape(P, K, G, R * T, L + S)
    out = weights[..., L:] @ v  # (P, K, G, R * T, E)
    if prefix:
        out = out + (weights[..., :L].reshape(P, K, G * R * T, L) @ prefix[1]).view(out.shape)
    return out.view(P, K, G, R, T, -1).transpose(2, 3).flatten(1, 2)


def _weights(scores: Tensor, mask: Tensor, how: Scoring) -> Tensor:
    """(P, K, G, R, T, S) -> probabilities in float32."""
    scores = scores.float() * how.scaling
    if how.softcap is not None:
        scores = torch.tanh(scores / how.softcap) * how.softcap
    scores = scores + mask
    if how.sinks is None:
        return scores.softmax(-1)
    sinks = how.sinks.float().view(1, scores.shape[1], 1, scores.shape[3], 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]  # a sink takes its share and gives nothing


def additive(mask: Tensor) -> Tensor:
    """0 where true, -inf where false."""
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, -torch.inf)
