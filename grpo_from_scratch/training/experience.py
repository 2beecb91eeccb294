"""Experience: prompts in order, completions for them, rewards for those, on training and on held-out dialogues."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from grpo_from_scratch.dialogue.dataset import Example, columns, encode_prompt
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.distributed.process_group import World, current
from grpo_from_scratch.distributed.randomness import key_seed, numpy_generator
from grpo_from_scratch.distributed.share import Share, contiguous, one_after_another
from grpo_from_scratch.objective.groups import group_statistics, reward_metrics
from grpo_from_scratch.objective.shaping import overlong_penalty
from grpo_from_scratch.policy.rollout import Rollout, concatenate, empty_rollout
from grpo_from_scratch.policy.sampling import sample
from grpo_from_scratch.rewards import parse_reward, score
from grpo_from_scratch.training.config import TrainConfig

MAX_ROUNDS = 5  # of dynamic sampling: a policy that has nothing left to learn must not sample for ever


@dataclass
class Sampled:
    """One round of sampling: this rank's completions, and what every rank has to know about everyone's."""

    rollout: Rollout  # (b,) of this rank
    share: Share  # which of the round's B completions those are, and the prompt that each of the B answers
    rewards: Tensor  # (B,) float32, NaN is missing
    lengths: Tensor  # (B,) in tokens
    finished: Tensor  # (B,) bool

    def select(self, rows: Tensor) -> "Sampled":
        """The completions of the round where ``rows`` (B,) is true."""
        of_all = (self.rewards, self.lengths, self.finished)
        own = self.rollout.select(self.share.take(rows))
        return Sampled(own, self.share.select(rows), *(tensor[rows] for tensor in of_all))


@dataclass
class Collected:
    """What one step learns from, and what it took."""

    rollout: Rollout  # (b,) this rank's completions
    share: Share  # which of the step's B completions those are, and the prompt that each of the B answers
    rewards: Tensor  # (B,) float32, NaN is missing
    prompts: int  # drawn from the data, by all ranks
    completions: int  # sampled, those that dynamic sampling left out included
    tokens: int
    metrics: dict[str, float]  # rewards, groups and lengths, over everything that was sampled


class Experience:
    """Turns a policy into rewarded completions, of which each rank samples and rewards a contiguous block.

    What is drawn depends on (seed, step, place in the data) alone, so it is the same after a resume and on any number
    of ranks.
    """

    def __init__(self, config: TrainConfig, world: World | None = None):
        self.config, self.world = config, world or current()
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
        kept: list[Sampled] = []
        everything: list[Sampled] = []
        for turn in range(MAX_ROUNDS if dynamic else 1):
            wanted = config.prompts_per_step - sum(part.share.units for part in kept)
            examples = self.train_prompts(first_prompt + sum(part.share.units for part in everything), wanted)
            drawn = sum(len(part.rewards) for part in everything)
            sampled = self._sample_round(model, tokenizer, examples, step=step, first_index=drawn)
            everything.append(sampled)
            if dynamic and turn < MAX_ROUNDS - 1:
                statistics = group_statistics(sampled.rewards, sampled.share.unit.to(sampled.rewards.device))
                with_signal = ~statistics.per_row(statistics.without_signal)
                if not with_signal.any():
                    continue
                sampled = sampled.select(with_signal)
            kept.append(sampled)
            if sampled.share.units == wanted:
                break
        drawn = one_after_another([part.share for part in everything])
        rewards, lengths, finished = (
            torch.cat([getattr(part, name) for part in everything]) for name in ("rewards", "lengths", "finished")
        )
        return Collected(
            rollout=concatenate([part.rollout for part in kept]),
            share=one_after_another([part.share for part in kept]),
            rewards=torch.cat([part.rewards for part in kept]),
            prompts=drawn.units,
            completions=len(rewards),
            tokens=int(lengths.sum()),
            metrics=reward_metrics(rewards, drawn.unit.to(rewards.device))
            | {"length": float(lengths.float().mean()), "truncated": float((~finished).float().mean())},
        )

    def _sample_round(self, model, tokenizer, examples: list[Example], *, step: int, first_index: int) -> Sampled:
        config = self.config
        rollout, share = self.sample_share(
            model, tokenizer, examples, config.group_size, seed=config.seed, step=step, first_index=first_index
        )
        facts = torch.stack(
            [self.rewards(rollout), rollout.completion_mask.sum(1).float(), rollout.finished.float()], 1
        )
        rewards, lengths, finished = share.gather(f"rewards of step {step + 1}", facts).unbind(1)
        return Sampled(rollout, share, rewards, lengths.long(), finished.bool())

    def heldout_reward(self, model: nn.Module, tokenizer) -> float:
        """Mean reward of one sampled reply to each held-out prompt; the same random numbers at every evaluation."""
        seed = key_seed(self.config.seed, "held-out evaluation")
        rollout, share = self.sample_share(model, tokenizer, self.heldout, 1, seed=seed, step=0)
        return float(share.gather("held-out rewards", self._score(rollout)).nanmean())

    def train_prompts(self, first: int, count: int) -> list[Example]:
        """``count`` examples from place ``first`` of an endless sequence: one keyed permutation after another."""
        n, orders, chosen = len(self.train_examples), {}, []
        for place in range(first, first + count):
            epoch, index = divmod(place, n)
            if epoch not in orders:
                orders[epoch] = numpy_generator(self.config.seed, "data order", epoch).permutation(n)
            chosen.append(self.train_examples[orders[epoch][index]])
        return chosen

    def sample_share(
        self, model, tokenizer, examples: list[Example], group_size: int, *, seed: int, step: int, first_index: int = 0
    ) -> tuple[Rollout, Share]:
        """This rank's share of the completions of these examples: whole groups where every rank can have one."""
        share = contiguous(self.world, len(examples), group_size)
        if len(share.rows) == 0:
            return empty_rollout(self.config.temperature, model.device), share
        prompts, sizes = share.own_units.unique(return_counts=True)
        own, first = [examples[prompt] for prompt in prompts.tolist()], first_index + int(share.rows[0])
        return self.sample(model, tokenizer, own, sizes.tolist(), seed=seed, step=step, first_index=first), share

    def sample(
        self,
        model,
        tokenizer,
        examples: list[Example],
        group_size: int | list[int],
        *,
        seed: int,
        step: int,
        first_index: int = 0,
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
        if len(rollout) == 0:
            return torch.zeros(0, device=rollout.device)
        answered = [rollout.examples[i] for i in rollout.prompt_index.tolist()]
        prompts = [" ".join((*example.background, *example.turns)) for example in answered]
        return score(self.reward, prompts, rollout.texts, columns(answered)).to(rollout.device)
