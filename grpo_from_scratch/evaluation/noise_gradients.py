"""Policy gradients of a language model, one completion or one batch at a time, and their inner products."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

from grpo_from_scratch.dialogue.dataset import Example
from grpo_from_scratch.distributed.randomness import key_seed, numpy_generator
from grpo_from_scratch.evaluation.noise_terms import Pool, own_norm, prompt_gradient
from grpo_from_scratch.objective.advantages import compute_advantages
from grpo_from_scratch.policy.logprobs import score_completions
from grpo_from_scratch.policy.rollout import Rollout
from grpo_from_scratch.training.experience import Experience

SAMPLED_AT_ONCE = 512  # completions: many small sampling calls cost twice as much
COLUMNS_AT_ONCE = 1 << 16
Report = Callable[[], None]


def policy_gradients(model: nn.Module, rollout: Rollout, advantages: Tensor) -> Tensor:
    """Mean over completions of advantage · ∇(summed log-prob), for each row of ``advantages`` (K, B): (K, D).

    D counts all parameters that learn, in the model's order.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    logps = score_completions(model, rollout, entropy=False).logps.sum(1)  # (B,)
    losses = (advantages.to(logps) * logps).mean(1)
    gradients = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    return torch.stack([torch.cat([part.flatten() for part in gradient]) for gradient in gradients])


def scores(model: nn.Module, rollout: Rollout) -> Tensor:
    """Each completion's score, the gradient of its summed log-prob: (B, D)."""
    one = torch.ones(1, 1)
    return torch.cat([policy_gradients(model, rollout.select([row]), one) for row in range(len(rollout))])


def gradient_pool(
    model: nn.Module, tokenizer, experience: Experience, *, prompts: int, replies: int, seed: int, report: Report
) -> Pool:
    """``prompts`` drawn prompts with ``replies`` completions each; one prompt's scores are in memory at a time."""
    rewards, norms, own, estimates = [], [], [], []
    for rollout, paid in _rollouts(
        model, tokenizer, experience, prompts, replies, 1, seed=key_seed(seed, "noise pool")
    ):
        of_prompt, reward = scores(model, rollout).cpu().numpy(), paid.double().cpu().numpy()
        products = (of_prompt @ of_prompt.T).astype(np.float64)  # (n, n)
        rewards.append(reward)
        norms.append(np.diag(products))
        own.append(own_norm(reward, products))
        estimates.append(torch.from_numpy(prompt_gradient(reward, of_prompt)))
        report()
    return Pool(np.array(rewards), np.array(norms), np.array(own), inner_products(torch.stack(estimates)))


def batch_products(
    model: nn.Module,
    tokenizer,
    experience: Experience,
    *,
    constant: float,
    group_size: int,
    batch: int,
    batches: int,
    seed: int,
    report: Report,
) -> tuple[np.ndarray, np.ndarray]:
    """Inner products of the gradients of independent batches, under the constant baseline and under leave-one-out.

    Both see the same completions, as a trainer would draw them for one update of ``batch`` completions.

    Returns:
        two (batches, batches) matrices, global and group.
    """
    prompts = batch // group_size
    gradients = []
    for rollout, rewards in _rollouts(
        model,
        tokenizer,
        experience,
        prompts * batches,
        group_size,
        prompts,
        seed=key_seed(seed, "noise batches", item=group_size),
    ):
        advantages = [rewards - constant, compute_advantages("rloo", rewards, rollout.prompt_index)]
        gradients.append(policy_gradients(model, rollout, torch.stack(advantages)))
        report()
    by_baseline = torch.stack(gradients, dim=1)  # (2, batches, D)
    return inner_products(by_baseline[0]), inner_products(by_baseline[1])


def inner_products(rows: Tensor) -> np.ndarray:
    """(n, D) -> (n, n), summed in float64."""
    blocks = (block.double() for block in rows.split(COLUMNS_AT_ONCE, dim=1))
    return sum(block @ block.T for block in blocks).cpu().numpy()


def _rollouts(
    model, tokenizer, experience: Experience, prompts: int, group_size: int, lot: int, *, seed: int
) -> Iterator[tuple[Rollout, Tensor]]:
    """Completions and rewards of ``prompts`` independently drawn training prompts, ``lot`` prompts at a time."""
    chosen = numpy_generator(seed, "noise prompts").integers(len(experience.train_examples), size=prompts)
    at_once = lot * max(1, SAMPLED_AT_ONCE // (lot * group_size))
    for first in range(0, prompts, at_once):
        examples: list[Example] = [experience.train_examples[i] for i in chosen[first : first + at_once]]
        everything = experience.sample(
            model, tokenizer, examples, group_size, seed=seed, step=0, first_index=first * group_size
        )
        rewards = experience.rewards(everything)
        for rows in torch.arange(len(everything)).split(lot * group_size):
            yield everything.select(rows), rewards[rows]
