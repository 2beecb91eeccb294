"""What a policy's replies are worth, by measures it was trained on and by measures it was not."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import torch
from torch import nn

from grpo_from_scratch.dialogue.dataset import Example, columns, encode_prompt
from grpo_from_scratch.distributed.randomness import key_seed
from grpo_from_scratch.evaluation.text import corpus_bleu, corpus_rouge_l, distinct_n
from grpo_from_scratch.policy.logprobs import completion_logps
from grpo_from_scratch.policy.rollout import Rollout
from grpo_from_scratch.policy.sampling import sample
from grpo_from_scratch.rewards import facts_reward


def measure(
    model: nn.Module,
    tokenizer,
    examples: Sequence[Example],
    *,
    max_new_tokens: int,
    max_prompt_tokens: int,
    seed: int = 0,
    reference: nn.Module | None = None,
) -> dict[str, float | None]:
    """One sampled and one greedy reply to each example, compared with its references.

    Args:
        reference: the policy before training, for ``kl``.

    Returns:
        bleu, bleu_greedy: corpus BLEU in [0, 1] of the sampled and of the greedy replies; rouge_l; fact_accuracy: the
        share of sampled replies that name a fact of their background, None where no example has facts; distinct:
        distinct-2 of the sampled replies; kl: mean over replies of log π(reply) − log π_ref(reply), in nats, None
        without a reference.
    """
    prompts = [encode_prompt(example, tokenizer, max_prompt_tokens) for example in examples]
    sampled, greedy = (
        sample(
            model,
            tokenizer,
            prompts,
            group_size=1,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            seed=key_seed(seed, "final measurement"),
        )
        for temperature in (1.0, 0.0)
    )
    given = columns(list(examples))
    facts = [score for score in facts_reward(prompts, sampled.texts, **given) if score is not None]
    return {
        "bleu": corpus_bleu(sampled.texts, given["references"]),
        "bleu_greedy": corpus_bleu(greedy.texts, given["references"]),
        "rouge_l": corpus_rouge_l(sampled.texts, given["references"]),
        "fact_accuracy": fmean(facts) if facts else None,
        "distinct": distinct_n(sampled.texts, 2),
        "kl": _kl_per_reply(model, reference, sampled) if reference is not None else None,
    }


@torch.no_grad()
def _kl_per_reply(model: nn.Module, reference: nn.Module, sampled: Rollout) -> float:
    """k1 summed over each reply: unbiased for the KL between the policies' distributions over whole replies."""
    sampled = replace(sampled, temperature=1.0)
    policy, ref = (completion_logps(network, sampled)[0] for network in (model, reference))
    return float((policy - ref).sum(1).mean())
