"""RLTrainer: rollout -> reward -> advantage -> update. One loop for every algorithm."""

import dataclasses
import json
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers
from torch import nn

from grpo_from_scratch import __version__
from grpo_from_scratch.policy.shared_prefix import shared_prefix
from grpo_from_scratch.training.algorithm import Algorithm
from grpo_from_scratch.training.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.experience import Experience
from grpo_from_scratch.training.logs import MetricsLog, read_metrics
from grpo_from_scratch.training.sft import starting_policy
from grpo_from_scratch.training.updates import Updater


@dataclass
class RunResult:
    """What a run leaves: the trained policy and its history."""

    model: nn.Module
    tokenizer: object
    metrics: list[dict]  # the rows of metrics.jsonl, one for each step, the first before any update

    @property
    def evaluations(self) -> list[dict]:
        """The rows with a held-out reward, under "eval_reward"."""
        return [row for row in self.metrics if row.get("eval_reward") is not None]


@dataclass
class Progress:
    """How far a run is. All randomness is keyed by these counters, so they are all that a resume needs of it."""

    step: int = 0
    prompts: int = 0  # drawn so far: the place in the data
    completions: int = 0
    tokens: int = 0
    cpu_seconds: float = 0.0  # of training alone: held-out evaluation is the measuring, not what is measured
    wall_seconds: float = 0.0


class RLTrainer:
    """Trains one policy with one preset. If ``config.out`` holds the beginning of the same run, it goes on from there.

    Args:
        config: every number of the run.
        on_step: called with each row of metrics as it is written.
        on_evaluation: called with the trainer at each held-out evaluation; what it returns joins the row.

    Raises:
        ValueError: the folder holds a run with other settings (the message names them), or data, reward or model cannot
            be used.
    """

    def __init__(
        self,
        config: TrainConfig,
        *,
        on_step: Callable[[dict], None] | None = None,
        on_evaluation: Callable[["RLTrainer"], dict] | None = None,
    ):
        self.config, self.on_step, self.on_evaluation = config, on_step, on_evaluation
        self.folder = Path(config.out)
        self.experience = Experience(config)
        self.model, self.tokenizer = starting_policy(
            config.model, config.data, self.experience.train_examples, config.seed
        )
        self.algorithm = Algorithm(config, self.model)
        self.updater = Updater(config, self.algorithm)
        self.progress = Progress()
        claim_folder(self.folder, config)  # last, so that what was refused above leaves no folder behind
        checkpoint = latest_checkpoint(self.folder / "checkpoints")
        if checkpoint is not None:
            self._restore(load_checkpoint(checkpoint))
        self.log = MetricsLog(self.folder, self.progress.step if checkpoint is not None else -1)

    def train(self, until: int | None = None) -> RunResult:
        """Run to the end, or to step ``until``; Ctrl-C lets the step finish, saves, and raises KeyboardInterrupt."""
        config, progress = self.config, self.progress
        last = config.steps if until is None else min(until, config.steps)
        with finish_step_on_interrupt() as interrupted, shared_prefix(config.shared_prefix):
            if progress.step == 0 and config.eval_every:
                self._record(self._counters() | self._evaluation())
            while progress.step < last and not interrupted.is_set():
                row = self._step()
                if config.eval_every and (progress.step % config.eval_every == 0 or progress.step == config.steps):
                    row |= self._evaluation()
                self._record(row)
                stopping = progress.step == last or interrupted.is_set()
                if config.checkpoint_every and (stopping or progress.step % config.checkpoint_every == 0):
                    self.save()
        if interrupted.is_set():
            raise KeyboardInterrupt
        return RunResult(self.model, self.tokenizer, read_metrics(self.log.path))

    def _step(self) -> dict:
        cpu, wall = time.process_time(), time.perf_counter()
        progress = self.progress
        collected = self.experience.collect(
            self.model, self.tokenizer, step=progress.step, first_prompt=progress.prompts
        )
        batch, judged = self.algorithm.prepare(collected.rollout, collected.rewards)
        updated = self.updater.step(batch, progress.step)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        progress.step += 1
        progress.prompts += collected.prompts
        progress.completions += collected.completions
        progress.tokens += collected.tokens
        progress.cpu_seconds += cpu
        progress.wall_seconds += wall
        speed = {
            "completions_per_cpu_second": collected.completions / cpu,
            "tokens_per_cpu_second": collected.tokens / cpu,
            "samples_per_second": collected.completions / wall,
        }
        return self._counters() | collected.metrics() | judged | updated | speed

    def _evaluation(self) -> dict:
        more = self.on_evaluation(self) if self.on_evaluation else {}
        return {"eval_reward": self.experience.heldout_reward(self.model, self.tokenizer)} | more

    def _counters(self) -> dict:
        return dataclasses.asdict(self.progress)

    def _record(self, row: dict) -> None:
        self.log.write(row)
        if self.on_step:
            self.on_step(row)

    def save(self) -> Path:
        """Write a checkpoint from which the run goes on bit for bit."""
        state = {
            "progress": dataclasses.asdict(self.progress),
            "model": self.model.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "updater": self.updater.state_dict(),
        }
        return save_checkpoint(self.folder / "checkpoints", self.progress.step, state)

    def _restore(self, state: dict) -> None:
        self.progress = Progress(**state["progress"])
        self.model.load_state_dict(state["model"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.updater.load_state_dict(state["updater"])


def claim_folder(folder: Path, config: TrainConfig) -> None:
    """Write config.json and versions.json into the run's folder, or see that those there are of the same run.

    Raises:
        ValueError: the folder belongs to a run with other settings, or is none.
    """
    saved = folder / "config.json"
    if saved.is_file():
        earlier = TrainConfig.from_dict(json.loads(saved.read_text(encoding="utf-8")))
        if differences := config.differences(earlier):
            raise ValueError(
                f"{folder} holds a run with other settings ({'; '.join(differences)}); "
                "use those, choose another folder, or delete this one"
            )
        return
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a run needs a folder of its own")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "versions.json").write_text(json.dumps(versions()), encoding="utf-8")
    saved.write_text(json.dumps(config.to_dict(), indent=1), encoding="utf-8")


def versions() -> dict[str, str]:
    """Of everything that a run's numbers depend on."""
    return {
        "grpo_from_scratch": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


@contextmanager
def finish_step_on_interrupt() -> Iterator[threading.Event]:
    """Ctrl-C sets the event instead of breaking off inside an update; a second one breaks off at once."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted  # only the main thread may handle signals
        return

    def note(*_):
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
