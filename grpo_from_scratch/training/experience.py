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
    """What one step learns from and what it cost."""

    rollout: Rollout
    rewards: Tensor  # (B,) float32, NaN is missing
    prompts: int  # drawn from the data
    completions: int  # sampled, those that dynamic sampling left out included
    tokens: int

    def metrics(self) -> dict[str, float]:
        """Rewards, groups and lengths of this step."""
        lengths = self.rollout.completion_mask.sum(1).float()
        return reward_metrics(self.rewards, self.rollout.prompt_index) | {
            "length": float(lengths.mean()),
            "truncated": float((~self.rollout.finished).float().mean()),
        }


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
        rollouts, rewards, kept, prompts, completions, tokens = [], [], 0, 0, 0, 0
        for turn in range(MAX_ROUNDS if dynamic else 1):
            wanted = config.prompts_per_step - kept
            examples = self.train_prompts(first_prompt + prompts, wanted)
            rollout = self.sample(
                model, tokenizer, examples, config.group_size, seed=config.seed, step=step, first_index=completions
            )
            reward = self.rewards(rollout)
            prompts, completions = prompts + wanted, completions + len(rollout)
            tokens += int(rollout.completion_mask.sum())
            last = turn == MAX_ROUNDS - 1
            if dynamic and not last:
                statistics = group_statistics(reward, rollout.prompt_index)
                with_signal = ~statistics.per_row(statistics.without_signal)
                if not with_signal.any():
                    continue
                rollout, reward = rollout.select(with_signal), reward[with_signal]
            rollouts.append(rollout)
            rewards.append(reward)
            kept += len(rollout.prompt_ids)
            if kept == config.prompts_per_step:
                break
        return Collected(concatenate(rollouts), torch.cat(rewards), prompts, completions, tokens)

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
