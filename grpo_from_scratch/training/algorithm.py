"""A preset brought to life: a rollout and its rewards go in, losses come out.

Holds everything an algorithm remembers between steps: the frozen reference, EMA baselines, semantic groups, the critic.
"""

import copy
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from grpo_from_scratch.distributed.precision import autocast, check_weights
from grpo_from_scratch.distributed.process_group import World, current
from grpo_from_scratch.distributed.sharding import check_heads, gathered, load_whole, shard
from grpo_from_scratch.distributed.share import Share, alone
from grpo_from_scratch.objective.advantages import compute_advantages, explained_variance, gae, masked_whiten
from grpo_from_scratch.objective.baselines import EMABaseline
from grpo_from_scratch.objective.groups import SemanticGroups
from grpo_from_scratch.objective.loss import policy_loss, value_loss
from grpo_from_scratch.objective.shaping import token_rewards
from grpo_from_scratch.objective.surrogates import aggregate
from grpo_from_scratch.policy.embeddings import TfidfEncoder, hidden_state_embeddings
from grpo_from_scratch.policy.heads import GRPOPolicy
from grpo_from_scratch.policy.logprobs import completion_logps, score_completions
from grpo_from_scratch.policy.lora import lora_layers, without_lora
from grpo_from_scratch.policy.modules import trained_weights
from grpo_from_scratch.policy.rollout import Rollout
from grpo_from_scratch.policy.shared_prefix import supported
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.instruments import advantage_metrics, gradient_metrics

OF_ALL = ("rollout", "share", "scores", "groups")  # what of a Batch is not one row for each of this rank's completions


@dataclass
class Batch:
    """This rank's rollout with what all rewards say about it. Fixed while the policy takes its passes over it."""

    rollout: Rollout
    share: Share  # which of the step's B completions on all ranks the rollout holds

    # Of all B completions, and left as they are by a selection of rows.
    scores: Tensor  # (B,) what is compared: the rewards, minus the KL to the reference where that is part of them
    groups: Tensor | None = None  # (B,) ids of who is compared with whom; None with a critic

    # Of this rank's b completions, and of their T tokens.
    mask: Tensor | None = None  # (b, T) bool; an empty row where the reward is missing
    prompts: Tensor | None = None  # (b,) the prompt that each answers, numbered through all ranks
    old_logps: Tensor | None = None  # (b, T); None when the only update is exactly on-policy
    ref_logps: Tensor | None = None  # (b, T)
    advantages: Tensor | None = None  # (b,), or (b, T) with a critic
    values: Tensor | None = None  # (b, T), the critic's before its update
    returns: Tensor | None = None  # (b, T), what the critic learns

    def select(self, rows: Tensor) -> "Batch":
        """These of this rank's completions, cut to the longest of them."""
        rollout = self.rollout.select(rows)
        width = rollout.completion_ids.shape[1]

        def part(tensor: Tensor | None) -> Tensor | None:
            if tensor is None:
                return None
            return tensor[rows] if tensor.dim() == 1 else tensor[rows, :width]

        of_rows = {name: part(tensor) for name, tensor in vars(self).items() if name not in OF_ALL}
        return Batch(rollout, self.share, self.scores, self.groups, **of_rows)


class Algorithm:
    """One preset on one policy.

    Args:
        config: the run's; ``config.preset`` says what is compared with what.
        model: the policy to train. A frozen copy of it, as it is now, becomes the reference if one is needed: for a KL
            term, or to embed the replies of semantic groups. Under LoRA that is the model itself without its additions.
    """

    def __init__(self, config: TrainConfig, model: nn.Module):
        preset = config.preset
        self.config, self.preset, self.model = config, preset, model
        check_weights(model)
        self.ema = EMABaseline(preset.alpha, preset.ema_init) if preset.baseline == "ema" else None
        self.groups = SemanticGroups(preset.num_groups, config.seed) if preset.groups == "semantic" else None
        self.tfidf = TfidfEncoder() if self.groups is not None and config.encoder == "tfidf" else None
        embeds = self.groups is not None and self.tfidf is None
        self.reference = self._make_reference() if preset.kl_coef > 0 or embeds else None
        self.critic = self._make_critic() if config.uses_critic else None
        for lm in (model, self.reference, self.critic and self.critic.lm):
            if lm is not None and config.shared_prefix:
                supported(lm)  # found out now: the first step's time is the algorithm's own
        self._shard()

    def _make_reference(self) -> nn.Module:
        return self.model if lora_layers(self.model) else copy.deepcopy(self.model).requires_grad_(False)

    def _make_critic(self) -> GRPOPolicy:
        """A separate critic starts as a copy of the policy's weights; a head sits on the policy itself."""
        return GRPOPolicy(copy.deepcopy(self.model) if self.config.critic == "separate" else self.model)

    def _shard(self) -> None:
        """Lay policy, reference and critic onto the ranks. A value head alone is small, and stays whole on each."""
        strategy, world, lm = self.config.strategy, current(), self.model
        plan, blocks = getattr(lm, "tp_plan", None) or {}, lm._no_split_modules
        check_heads(lm.config.get_text_config(), world, strategy)
        for policy in dict.fromkeys((self.model, self.reference)):  # under LoRA they are one
            if policy is not None:
                shard(policy, strategy, world, blocks=blocks, plan=plan)
        if self.critic is not None and not self.shares_body:
            inside = {f"lm.{name}": style for name, style in plan.items()}
            shard(self.critic, strategy, world, blocks=blocks, plan=inside, method="token_values")

    @property
    def shares_body(self) -> bool:
        """The critic is a head on the policy, trained by the same backward pass."""
        return self.critic is not None and self.critic.lm is self.model

    @torch.no_grad()
    def prepare(self, rollout: Rollout, rewards: Tensor, share: Share | None = None) -> tuple[Batch, dict[str, float]]:
        """Everything that the updates on this rollout need, and what is worth logging about it.

        Who is compared with whom, and every statistic, is over the completions of all ranks.

        Args:
            rollout: this rank's completions.
            rewards: (B,) float32, of all ranks' completions; NaN is missing and trains nothing.
            share: which of the B the rollout holds; by default all of them.
        """
        preset, share = self.preset, share or alone(rollout.prompt_index)
        own = share.take(rewards)  # (b,)
        mask = rollout.completion_mask & ~own.isnan()[:, None]
        batch = Batch(rollout, share, rewards, mask=mask, prompts=share.own_units.to(rollout.device))
        kl_in_reward = preset.kl_coef > 0 and preset.kl_in == "reward"
        if kl_in_reward or preset.passes * self.config.minibatches > 1:
            batch.old_logps = self._old_logps(rollout)
        if preset.kl_coef > 0:
            with without_lora(self.reference):
                batch.ref_logps = self._logps(self.reference, rollout)
        per_token = token_rewards(
            own,
            mask,
            logps=batch.old_logps,
            ref_logps=batch.ref_logps,
            kl_coef=preset.kl_coef if kl_in_reward else 0.0,
        )  # (b, T)
        if kl_in_reward:
            batch.scores = share.gather("scores", torch.where(own.isnan(), math.nan, per_token.sum(1)))
        return self._judge_by_group(batch) if self.critic is None else self._judge_by_critic(batch, per_token)

    def _old_logps(self, rollout: Rollout) -> Tensor:
        """The sampler recorded them already, unless top-p or top-k made it sample from another distribution.

        It samples in float32. Updates in half precision need old log-probs that were rounded like theirs: else the
        first ratio is not 1.
        """
        truncated = self.config.top_p < 1 or self.config.top_k > 0
        again = truncated or self.config.precision != "fp32"
        return self._logps(self.model, rollout) if again else rollout.logps

    def _logps(self, model: nn.Module, rollout: Rollout) -> Tensor:
        """(b, T) in the precision of the updates, so that a policy's ratio to itself is 1 and its KL 0."""
        with self._autocast(rollout):
            return completion_logps(model, rollout)[0]

    def _autocast(self, rollout: Rollout) -> torch.autocast:
        return autocast(self.config.precision, rollout.device)

    def _judge_by_group(self, batch: Batch) -> tuple[Batch, dict[str, float]]:
        groups = self._group_ids(batch.rollout, batch.share)
        advantages = compute_advantages(self.preset, batch.scores, groups, ema=self.ema)  # (B,)
        metrics = advantage_metrics(advantages, batch.scores, batch.share.unit)
        if self.groups is not None:
            metrics["semantic_groups"] = groups.unique().numel()
        return replace(batch, groups=groups, advantages=batch.share.take(advantages)), metrics

    def _group_ids(self, rollout: Rollout, share: Share) -> Tensor:
        """(B,), of all ranks' completions."""
        if self.preset.groups == "prompt":
            return share.unit.to(rollout.device)
        if self.preset.groups == "batch":
            return torch.zeros_like(share.unit).to(rollout.device)
        if self.tfidf is not None:
            embeddings = self.tfidf.encode(share.gather_list("replies", rollout.texts))
        else:
            with gathered(self.reference), without_lora(self.reference):
                embeddings = hidden_state_embeddings(self.reference, rollout)
            embeddings = share.gather("embeddings", embeddings)
        return self._assign(embeddings).to(rollout.device)

    def _assign(self, embeddings: Tensor | np.ndarray) -> Tensor:
        """Semantic groups of all ranks' replies. One rank fits: KMeans adds up its threads' sums in any order."""

        def fit():
            return self.groups.assign(embeddings), self.groups.state_dict()

        ids, state = current().from_first("semantic groups", fit)
        self.groups.load_state_dict(state)
        return ids

    def _judge_by_critic(self, batch: Batch, per_token: Tensor) -> tuple[Batch, dict[str, float]]:
        """Generalised advantage estimates, whitened over real tokens.

        The explained variance is that of the value before the first token: what a group mean takes the place of.
        """
        preset, mask = self.preset, batch.mask
        with gathered(self.critic):
            values = torch.where(mask, self._token_values(batch.rollout), 0)  # (b, T)
        advantages, returns = gae(per_token, values, mask, gamma=preset.gamma, lam=preset.lam)
        if preset.scale == "batch":
            advantages = _whiten(advantages, mask, batch.share.world)
        first = torch.stack([values[:, 0], mask[:, 0].float()], 1)
        of_all, counts = batch.share.gather("values", first).unbind(1)
        ev = explained_variance(of_all, batch.scores, counts)
        return replace(batch, advantages=advantages, values=values, returns=returns), {"ev": ev}

    def finish(self, batch: Batch) -> None:
        """The policy has learned from the batch: now its rewards may enter what the next batch is compared with."""
        if self.ema is not None:
            self.ema.update(batch.scores, batch.groups)

    def loss(self, batch: Batch, *, denominator: Tensor, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of a piece of a minibatch, with the value loss added where the critic is a head on the policy.

        Args:
            denominator: the whole minibatch's ``loss_denominator``, so that the pieces' gradients add up.
            tokens: real tokens of the whole minibatch.

        Returns:
            The loss (), and metrics: those of ``policy_loss`` and ``gradient_metrics``, the entropy, and
            ``sampler_gap``, the mean distance of the tokens' log-probs from those that the sampler recorded.
        """
        with self._autocast(batch.rollout):
            scored = score_completions(self.model, batch.rollout, hidden=self.shares_body)
        parts = {"advantages": batch.advantages, "mask": batch.mask, "ref_logps": batch.ref_logps}
        logps, old_logps = scored.logps, batch.old_logps
        loss, metrics = policy_loss(
            self.preset,
            logps=logps,
            old_logps=logps.detach() if old_logps is None else old_logps,
            denominator=denominator,
            **parts,
        )
        metrics |= gradient_metrics(self.preset, logps=logps, old_logps=old_logps, **parts)
        metrics["entropy"] = aggregate(scored.entropy, batch.mask, "token")
        metrics["sampler_gap"] = aggregate((logps.detach() - batch.rollout.logps).abs(), batch.mask, "token")
        if self.shares_body:
            loss = loss + self.config.value_coef * self._value_loss(scored.hidden, batch, tokens)
        return loss, metrics

    def critic_loss(self, batch: Batch, *, tokens: Tensor) -> Tensor:
        """The value loss alone. A head then learns from fixed states: warm-up must not move the policy."""
        if self.shares_body:
            with torch.no_grad(), self._autocast(batch.rollout):
                hidden = score_completions(self.model, batch.rollout, entropy=False, hidden=True).hidden
            return self._value_loss(hidden, batch, tokens)
        return self._error(self._token_values(batch.rollout), batch, tokens)

    def _token_values(self, rollout: Rollout) -> Tensor:
        with self._autocast(rollout):
            return self.critic.token_values(rollout)

    def _value_loss(self, hidden: Tensor, batch: Batch, tokens: Tensor) -> Tensor:
        return self._error(self.critic.value_head(hidden.float())[..., 0], batch, tokens)

    def _error(self, values: Tensor, batch: Batch, tokens: Tensor) -> Tensor:
        clip = self.config.value_clip or None
        return value_loss(values, batch.returns, batch.mask, old_values=batch.values, clip=clip, denominator=tokens)

    def _parts(self) -> dict:
        critic = self.critic.value_head if self.shares_body else self.critic
        parts = {"ema": self.ema, "groups": self.groups, "tfidf": self.tfidf, "critic": critic}
        return {name: part for name, part in parts.items() if part is not None}

    def state_dict(self) -> dict:
        """What a resume needs beside the policy. The reference is not in it: it is what the run began with."""
        return {
            name: trained_weights(part) if name == "critic" else part.state_dict()
            for name, part in self._parts().items()
        }

    def load_state_dict(self, state: dict) -> None:
        for name, part in self._parts().items():
            load_whole(part, state[name]) if name == "critic" else part.load_state_dict(state[name])


def _whiten(values: Tensor, mask: Tensor, world: World) -> Tensor:
    """(B, T) whitened over the real tokens of all ranks."""
    parts = world.gather("advantages", values[mask])  # (n_r,) of each rank
    together = torch.cat(parts)[None]
    white = masked_whiten(together, torch.ones_like(together, dtype=torch.bool))[0]
    own = white.split([len(part) for part in parts])[world.rank]
    return torch.zeros_like(values).masked_scatter(mask, own)
