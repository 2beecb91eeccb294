"""Experience: prompts in order, completions for them, rewards for those, on training and on held-out dialogues."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grpo_from_scratch.dialogue.dataset import Example, columns, encode_prompt
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.distributed.randomness import key_seed, numpy_generator
from grpo_from_scratch.objective.groups import group_statistics, reward_metrics
from grpo_from_scratch.objective.shaping import overlong_penalty
from grpo_from_scratch.policy.rollout import Rollout, concatenate
from grpo_from_scratch.policy.sampling import sample
from grpo_from_scratch.rewards import parse_reward, score
from grpo_from_scratch.training.config import TrainConfig

MAX_ROUNDS = 5  # of dynamic sampling: a policy that has nothing left to learn must not sample for ever


@dataclass
class Collected:
    """What one step learns from, and what it took."""

    rollout: Rollout
    rewards: Tensor  # (B,) float32, NaN is missing
    prompts: int  # drawn from the data
    completions: int  # sampled, those that dynamic sampling left out included
    tokens: int
    metrics: dict[str, float]  # rewards, groups and lengths, over everything that was sampled


class Experience:
    """Turns a policy into rewarded completions.

    What is drawn depends on (seed, step, place in the data) alone, so it is the same after a resume.
    """

    def __init__(self, config: TrainConfig):
        self.config = config
        self.reward = parse_reward(config.reward)
        self.train_examples = load_examples(config.data, "train", skip_bad=config.skip_bad)
        self.heldout = load_examples(config.data, config.eval_split, skip_bad=config.skip_bad)[: config.eval_prompts]

    def collect(self, model: nn.Module, tokenizer, *, step: int, first_prompt: int) -> Collected:
        """``prompts_per_step`` groups of completions with their rewards.

        Under dynamic sampling (DAPO, arXiv 2503.14476, section 3.2) groups whose rewards are all equal are replaced by
        new prompts; after MAX_ROUNDS rounds the last ones are kept as they are.

        Args:
            step: the update that the completions are for, part of their random key.
            first_prompt: the place in the data to draw from.
        """
        config, dynamic = self.config, self.config.preset.dynamic_sampling
        kept: list[tuple[Rollout, Tensor]] = []
        sampled: list[tuple[Rollout, Tensor]] = []
        for turn in range(MAX_ROUNDS if dynamic else 1):
            wanted = config.prompts_per_step - sum(len(rollout.prompt_ids) for rollout, _ in kept)
            examples = self.train_prompts(first_prompt + sum(len(r.prompt_ids) for r, _ in sampled), wanted)
            drawn = sum(len(rollout) for rollout, _ in sampled)
            rollout = self.sample(
                model, tokenizer, examples, config.group_size, seed=config.seed, step=step, first_index=drawn
            )
            reward = self.rewards(rollout)
            sampled.append((rollout, reward))
            if dynamic and turn < MAX_ROUNDS - 1:
                statistics = group_statistics(reward, rollout.prompt_index)
                with_signal = ~statistics.per_row(statistics.without_signal)
                if not with_signal.any():
                    continue
                rollout, reward = rollout.select(with_signal), reward[with_signal]
            kept.append((rollout, reward))
            if len(rollout.prompt_ids) == wanted:
                break
        everything, all_rewards = concatenate([r for r, _ in sampled]), torch.cat([r for _, r in sampled])
        return Collected(
            rollout=concatenate([rollout for rollout, _ in kept]),
            rewards=torch.cat([reward for _, reward in kept]),
            prompts=len(everything.prompt_ids),
            completions=len(everything),
            tokens=int(everything.completion_mask.sum()),
            metrics=reward_metrics(all_rewards, everything.prompt_index)
            | {
                "length": float(everything.completion_mask.sum(1).float().mean()),
                "truncated": float((~everything.finished).float().mean()),
            },
        )

    def heldout_reward(self, model: nn.Module, tokenizer) -> float:
        """Mean reward of one sampled reply to each held-out prompt; the same random numbers at every evaluation."""
        seed = key_seed(self.config.seed, "held-out evaluation")
        rollout = self.sample(model, tokenizer, self.heldout, 1, seed=seed, step=0)
        return float(self._score(rollout).nanmean())

    def train_prompts(self, first: int, count: int) -> list[Example]:
        """``count`` examples from place ``first`` of an endless sequence: one keyed permutation after another."""
        n, orders, chosen = len(self.train_examples), {}, []
        for place in range(first, first + count):
            epoch, index = divmod(place, n)
            if epoch not in orders:
                orders[epoch] = numpy_generator(self.config.seed, "data order", epoch).permutation(n)
            chosen.append(self.train_examples[orders[epoch][index]])
        return chosen

    def sample(
        self, model, tokenizer, examples: list[Example], group_size: int, *, seed: int, step: int, first_index: int = 0
    ) -> Rollout:
        config = self.config
        return sample(
            model,
            tokenizer,
            [encode_prompt(example, tokenizer, config.max_prompt_tokens) for example in examples],
            group_size=group_size,
            max_new_tokens=config.max_new_tokens,
            temperature=config.temperature,
            top_p=config.top_p,
            top_k=config.top_k,
            seed=seed,
            step=step,
            first_index=first_index,
            examples=examples,
        )

    def rewards(self, rollout: Rollout) -> Tensor:
        """What the policy is trained on: the reward, with DAPO's soft penalty on overlong replies where asked for."""
        lengths = rollout.completion_mask.sum(1)
        limit, share = self.config.max_new_tokens, self.config.preset.overlong_penalty
        if not share:
            return self._score(rollout)
        buffer = max(1, round(share * limit))
        return self._score(rollout) + overlong_penalty(lengths, max_new_tokens=limit, buffer=buffer)

    def _score(self, rollout: Rollout) -> Tensor:
        answered = [rollout.examples[i] for i in rollout.prompt_index.tolist()]
        prompts = [" ".join((*example.background, *example.turns)) for example in answered]
        return score(self.reward, prompts, rollout.texts, columns(answered)).to(rollout.device)
