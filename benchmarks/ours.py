"""Our side: the trainer's own sampling, algorithm and updates, on the work of a benchmark."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from benchmarks.work import LEARNING_RATE, Work, word_f1
from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.policy.sampling import sample
from grpo_from_scratch.policy.shared_prefix import shared_prefix
from grpo_from_scratch.rewards import score
from grpo_from_scratch.training.algorithm import Algorithm
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.updates import Updater


@dataclass(frozen=True)
class Step:
    """What one step took, and what it worked on."""

    cpu: dict[str, float]  # process-CPU-seconds of each phase
    prompt_tokens: int  # a prompt counted once for its group
    completion_tokens: int
    metrics: dict[str, float]


class Ours:
    """GRPO steps on the work, one after another.

    Args:
        work: what to answer.
        steps: how many steps there will be at most.
        bf16: bfloat16 autocast where log-probs and gradients are computed; sampling stays in float32.
        packed: compute a prompt once for its group.
    """

    def __init__(self, work: Work, *, steps: int, bf16: bool = True, packed: bool = True, seed: int = 0):
        self.work, self.packed, self.seed = work, packed, seed
        self.config = TrainConfig(
            preset=replace(PRESETS["grpo"], kl_coef=work.beta),
            model=str(work.folder),
            steps=steps,
            prompts_per_step=work.prompts,
            group_size=work.group_size,
            max_new_tokens=work.max_new,
            learning_rate=LEARNING_RATE,
            shared_prefix=packed,
            precision="bf16" if bf16 else "fp32",
            seed=seed,
        )
        self.model, self.tokenizer = load_policy(work.folder, device="cpu")
        self.algorithm = Algorithm(self.config, self.model)
        self.updater = Updater(self.config, self.algorithm)
        self.done = 0

    def step(self) -> Step:
        """The next one."""
        rows, cpu = self.work.rows_of(self.done), defaultdict(float)
        with shared_prefix(self.packed):
            with timed(cpu, "sample"):
                rollout = sample(
                    self.model,
                    self.tokenizer,
                    [row["prompt"] for row in rows],
                    group_size=self.work.group_size,
                    max_new_tokens=self.work.max_new,
                    seed=self.seed,
                    step=self.done,
                )
            with timed(cpu, "reward"):
                answered = [rows[prompt] for prompt in rollout.prompt_index.tolist()]
                columns = {"reference": [row["reference"] for row in answered]}
                rewards = score(word_f1, [row["prompt"] for row in answered], rollout.texts, columns)
            with timed(cpu, "prepare"):
                batch, _ = self.algorithm.prepare(rollout, rewards)
            with timed(cpu, "update"):
                metrics = self.updater.step(batch, self.done)
        self.done += 1
        metrics |= {"reward": float(rewards.mean())}
        return Step(dict(cpu), int(rollout.prompt_mask.sum()), int(rollout.completion_mask.sum()), metrics)


@contextmanager
def timed(cpu: dict[str, float], phase: str) -> Iterator[None]:
    """Add the process-CPU-seconds spent inside to ``cpu[phase]``."""
    start = time.process_time()
    yield
    cpu[phase] += time.process_time() - start
