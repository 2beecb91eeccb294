"""Bugs that people really make, each put into the package for the length of a ``with`` and taken out again.

    with BUGS["k1"].inside():
        RLTrainer(config).train()

What is patched is one function of the package, by one with the mistake. Notebook 12 shows what each does to a run, and
the tests of ``grpo diagnose`` see whether it is found.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
from torch import Tensor

from grpo_from_scratch.objective.baselines import group_mean
from grpo_from_scratch.objective.kl import kl_estimate
from grpo_from_scratch.objective.surrogates import importance_ratio, per_token
from grpo_from_scratch.policy.logprobs import completion_logps, score_completions
from grpo_from_scratch.training.algorithm import Algorithm


@dataclass(frozen=True)
class Bug:
    """A mistake, as code: the functions that are replaced, by their full names, and by what."""

    kind: str  # what one would call it in a review
    patches: dict[str, Callable]

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The package has this bug until the block ends."""
        with ExitStack() as stack:
            for target, replacement in self.patches.items():
                stack.enter_context(patch(f"grpo_from_scratch.{target}", replacement))
            yield


# ---------------------------------------------------------------- the loss


def clipped_by_maximum(
    logps: Tensor, old_logps: Tensor, advantages: Tensor, mask: Tensor, *, clip_low=0.2, clip_high=0.2, level="token"
) -> Tensor:
    """The maximum where A < 0: somebody reasoned that with a negative advantage everything turns round."""
    advantages = per_token(advantages, mask)
    ratio = importance_ratio(logps, old_logps, mask, level)
    plain, clipped = ratio * advantages, ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    return -torch.where(advantages < 0, torch.maximum(plain, clipped), torch.minimum(plain, clipped))


def kl_turned_round(logps: Tensor, ref_logps: Tensor, kind: str = "k3", *, ratio: Tensor | None = None) -> Tensor:
    """The log-ratio is policy minus reference, where k3 wants reference minus policy."""
    return kl_estimate(ref_logps, logps, kind, ratio=ratio) if kind == "k3" else kl_estimate(logps, ref_logps, kind)


def kl_as_a_plain_difference(
    logps: Tensor, ref_logps: Tensor, kind: str = "k3", *, ratio: Tensor | None = None
) -> Tensor:
    """The loss is given log π − log π_ref. Metrics, which are taken without a graph, stay right."""
    in_the_loss = torch.is_grad_enabled() and logps.requires_grad
    return kl_estimate(logps, ref_logps, "k1" if in_the_loss else kind, ratio=ratio)


# ---------------------------------------------------------------- what the loss is given


def prepare_without_eos(algorithm: Algorithm, rollout, rewards, share=None):
    """The mask is ``ids != pad``, in a tokenizer whose pad token is its end-of-sequence token."""
    end = algorithm.model.config.get_text_config().eos_token_id
    real = rollout.completion_mask & (rollout.completion_ids != end)
    return PREPARE(algorithm, replace(rollout, completion_mask=real), rewards, share)


def score_at_temperature_one(model, rollout, **wanted):
    """Sampled at ``rollout.temperature``, scored without it."""
    return score_completions(model, replace(rollout, temperature=1.0), **wanted)


def logps_at_temperature_one(model, rollout):
    return completion_logps(model, replace(rollout, temperature=1.0))


def groups_by_position(algorithm: Algorithm, rollout, share) -> Tensor:
    """Group ids for the layout a, b, c, a, b, c … where the batch has a, a, b, b, c, c."""
    return torch.arange(len(share.unit), device=rollout.device) % share.units


PREPARE = Algorithm.prepare

BUGS = {
    "max": Bug("the wrong end of a clip", {"objective.loss.clipped_surrogate": clipped_by_maximum}),
    "reversed k3": Bug("a log-ratio turned round", {"objective.loss.kl_estimate": kl_turned_round}),
    "k1": Bug("a value taken for a loss", {"objective.loss.kl_estimate": kl_as_a_plain_difference}),
    "eos": Bug("a mask by value", {"training.algorithm.Algorithm.prepare": prepare_without_eos}),
    "temperature": Bug(
        "two distributions for one",
        {
            "training.algorithm.score_completions": score_at_temperature_one,
            "training.algorithm.completion_logps": logps_at_temperature_one,
        },
    ),
    "shuffle": Bug("an order taken for granted", {"training.algorithm.Algorithm._group_ids": groups_by_position}),
    "own reward": Bug("a baseline that contains what it judges", {"objective.advantages.leave_one_out": group_mean}),
}
