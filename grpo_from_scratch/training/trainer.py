"""RLTrainer: rollout -> reward -> advantage -> update. One loop for every algorithm."""

import dataclasses
import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from grpo_from_scratch.distributed.placement import place
from grpo_from_scratch.distributed.process_group import current
from grpo_from_scratch.distributed.sharding import gathered, load_whole, rows_of, whole
from grpo_from_scratch.policy.lora import add_lora
from grpo_from_scratch.policy.modules import trained_weights, unwrap
from grpo_from_scratch.policy.sampling import stop_tokens
from grpo_from_scratch.policy.shared_prefix import shared_prefix
from grpo_from_scratch.training.algorithm import Algorithm
from grpo_from_scratch.training.checkpoint import checkpoint_step, latest_checkpoint, load_checkpoint, save_checkpoint
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.experience import Experience
from grpo_from_scratch.training.instruments import ends_trained
from grpo_from_scratch.training.logs import MetricsLog, read_metrics
from grpo_from_scratch.training.provenance import data_hash, source_hash, versions, weights_hash
from grpo_from_scratch.training.sft import starting_policy
from grpo_from_scratch.training.updates import Updater

# What a run writes into its folder, and what the table and the command add.
WRITTEN = ("config.*", "metrics.*", "result.*", "checkpoints", "checkpoints/*", "policy", "policy/*", "tracker")


@dataclass(repr=False)  # which would print every weight
class RunResult:
    """What a run leaves: the trained policy and its history."""

    model: nn.Module
    tokenizer: object
    metrics: list[dict]  # the rows of metrics.jsonl, one for each step, the first before any update

    def __repr__(self) -> str:
        held_out = [f"{row['eval_reward']:.3f}" for row in self.evaluations]
        rewards = " -> ".join(held_out[:1] + held_out[1:][-1:]) or "not measured"
        return f"RunResult({self.metrics[-1]['step']} steps, held-out reward {rewards})"

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
    cpu_seconds: float = 0.0  # of all ranks, training alone: held-out evaluation is the measuring, not the measured
    wall_seconds: float = 0.0


class RLTrainer:
    """Trains one policy with one preset. If ``config.out`` holds the beginning of the same run, it goes on from there.

    Every process of the job (``process_group.joined``) makes a trainer of the same config and they train one policy
    together; one process is a job of one. All of them must see the folder, rank 0 alone writes to it.

    Args:
        config: every number of the run.
        on_step: called with each row of metrics as it is written, on rank 0.
        on_evaluation: called with the trainer at each held-out evaluation, on every rank; what rank 0's returns joins
            the row.

    Raises:
        ValueError: the folder holds a run with other settings, data or weights (the message names them), or, unless
            the strategy is "ddp", of another number of processes; or one of data, reward and model cannot be used.
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
        self.world = current()
        by_layer = config.strategy == "layers"
        self.experience = Experience(config, rows_of(self.world, config.strategy))
        self.model, self.tokenizer = starting_policy(
            config.model, config.data, self.experience.train_examples, config.seed, device="cpu" if by_layer else None
        )
        if config.lora_rank:
            add_lora(self.model, config.lora_rank, alpha=config.lora_alpha, seed=config.seed)
        if config.gradient_checkpointing:
            self.model.activation_checkpointing_enable({"use_reentrant": False})
            self.model.train()  # transformers checkpoints in this mode only; dropout is off all the same
        if by_layer:  # never whole on one device; reference and critic are copies, and lie as it does
            place(self.model, config.device_map)
        check_length(config, self.model)
        inputs = {
            "data": data_hash(self.experience.train_examples, self.experience.heldout),
            "weights": weights_hash(self.model),
        }
        self.algorithm = Algorithm(config, self.model)
        self.updater = Updater(config, self.algorithm)
        self.progress = Progress()
        for name, value in ({"settings": json.dumps(config.to_dict(), sort_keys=True)} | inputs).items():
            self.world.agree(name, value)
        # Last, so that what was refused above leaves no folder behind.
        checkpoint = self.world.from_first("folder", lambda: self._open_folder(inputs))
        if checkpoint is not None:
            if not checkpoint.is_dir():
                raise ValueError(f"there is no {checkpoint} here, but rank 0 sees it: put the run on a shared disk")
            state = load_checkpoint(checkpoint)
            self._check_processes(state.get("processes", self.world.size))
            try:
                self._restore(state)
                if self.progress.step != checkpoint_step(checkpoint):
                    raise ValueError(f"it was saved after step {self.progress.step}")
            except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
                why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                raise ValueError(f"{checkpoint} is of another run ({why}); delete it to start this one anew") from error

    def _open_folder(self, inputs: dict[str, str]) -> Path | None:
        """Claim the run's folder and open its log. Returns the checkpoint to go on from, if there is one."""
        claim_folder(self.folder, self.config, inputs)
        checkpoint = latest_checkpoint(self.folder / "checkpoints")
        self.log = MetricsLog(self.folder, -1 if checkpoint is None else checkpoint_step(checkpoint))
        return checkpoint

    def train(self, until: int | None = None) -> RunResult:
        """Run to the end, or to step ``until``; Ctrl-C lets the step finish, saves, and raises KeyboardInterrupt."""
        config, progress = self.config, self.progress
        last = config.steps if until is None else min(until, config.steps)
        begun, interrupted = progress.step, False
        with finish_step_on_interrupt() as interrupt:
            while progress.step < last and not interrupted:
                self.advance()
                interrupted = self._any_rank(interrupt.is_set())  # Ctrl-C may reach ranks in different steps
            if config.checkpoint_every and progress.step > begun:
                self.save()
        if interrupted or interrupt.is_set():
            raise KeyboardInterrupt
        metrics = self.world.from_first("metrics of the run", lambda: read_metrics(self.log.path))
        return RunResult(self.model, self.tokenizer, metrics)

    def advance(self) -> dict:
        """One step: rollout, updates, and the evaluation and the checkpoint that are due. Returns its row of metrics.

        The first one evaluates the untrained policy before.
        """
        config, progress = self.config, self.progress
        with shared_prefix(config.shared_prefix):
            if progress.step == 0 and config.eval_every:
                self._record(self._counters() | self._evaluation())
            row = self._step()
            if config.eval_every and (progress.step % config.eval_every == 0 or progress.step == config.steps):
                row |= self._evaluation()
        self._record(row)
        if config.checkpoint_every and progress.step % config.checkpoint_every == 0:
            self.save()
        return row

    def _any_rank(self, flag: bool) -> bool:
        return bool(self.world.sum(f"end of step {self.progress.step}", torch.tensor(int(flag))))

    def _step(self) -> dict:
        cpu, wall = time.process_time(), time.perf_counter()
        progress = self.progress
        with gathered(self.model):
            collected = self.experience.collect(
                self.model, self.tokenizer, step=progress.step, first_prompt=progress.prompts
            )
        if self.config.strategy == "tensor":  # a reward that is not the same twice would split what ranks do together
            self.world.agree(f"rewards of step {progress.step + 1}", str(collected.rewards.tolist()))
        batch, judged = self.algorithm.prepare(collected.rollout, collected.rewards, collected.share)
        stop = stop_tokens(unwrap(self.model), self.tokenizer).to(batch.mask.device)
        ended, seen = self.world.sum("ends", ends_trained(batch.rollout, batch.mask, stop)).tolist()
        judged["ends_trained"] = seen / ended if ended else math.nan
        updated = self.updater.step(batch, progress.step)
        own = torch.tensor(time.process_time() - cpu, dtype=torch.float64)
        cpu, wall = float(self.world.sum("CPU seconds", own)), time.perf_counter() - wall
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
        return self._counters() | collected.metrics | judged | updated | speed

    def _evaluation(self) -> dict:
        with gathered(self.model):
            more = self.on_evaluation(self) if self.on_evaluation else {}
            reward = self.experience.heldout_reward(self.model, self.tokenizer)
            return {"eval_reward": reward, "eval_replies": len(self.experience.heldout)} | more

    def _counters(self) -> dict:
        return dataclasses.asdict(self.progress)

    def _record(self, row: dict) -> None:
        if not self.world.is_first:
            return
        self.log.write(row)
        if self.on_step:
            self.on_step(row)

    @torch.no_grad()
    def save(self) -> Path:
        """Write a checkpoint from which the run goes on bit for bit."""
        if self.config.strategy == "ddp":
            self.world.agree(f"weights after step {self.progress.step}", weights_hash(self.model))
        state = whole(
            {
                "processes": self.world.size,
                "progress": dataclasses.asdict(self.progress),
                "model": trained_weights(self.model),  # the others are what the run began with
                "algorithm": self.algorithm.state_dict(),
                "updater": self.updater.state_dict(),
            }
        )
        folder, step = self.folder / "checkpoints", self.progress.step
        return self.world.from_first(f"checkpoint of step {step}", lambda: save_checkpoint(folder, step, state))

    def _check_processes(self, began: int) -> None:
        here, strategy = self.world.size, self.config.strategy
        if strategy != "ddp" and began != here:
            raise ValueError(
                f"{self.folder} holds a run whose number of processes was {began}, and here it is {here}: under "
                f"'{strategy}' a run goes on with as many processes as it began with, under 'ddp' with any number"
            )

    def _restore(self, state: dict) -> None:
        self.progress = Progress(**state["progress"])
        load_whole(self.model, state["model"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.updater.load_state_dict(state["updater"])


def claim_folder(folder: Path, config: TrainConfig, inputs: dict[str, str]) -> None:
    """Write what a run is into its folder, or see that what is there is of the same run.

    Args:
        inputs: hashes of the data and of the weights that the run begins with.

    Raises:
        ValueError: the folder is of a run with other settings, or began with other data or weights, or is no folder.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a run needs a folder of its own")
    for link in (path for pattern in WRITTEN for path in folder.glob(pattern) if path.is_symlink()):
        raise ValueError(f"{link} is a link, and a run writes nothing outside its folder; put a file or folder there")
    saved = folder / "config.json"
    if saved.is_file():
        try:
            earlier = json.loads(saved.read_text(encoding="utf-8"))
            differences = config.differences(TrainConfig.from_dict(earlier["config"]))
            differences += [f"the {name} changed" for name in inputs if inputs[name] != earlier["inputs"][name]]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(
                f"{saved} is not of a run ({type(error).__name__}: {error}); choose another folder, or delete this one"
            ) from error
        if differences:
            raise ValueError(
                f"{folder} holds a run with other settings ({'; '.join(differences)}); "
                "use those, choose another folder (--out), or delete this one"
            )
        return
    folder.mkdir(parents=True, exist_ok=True)
    record = {"config": config.to_dict(), "inputs": inputs, "versions": versions(), "source_hash": source_hash()}
    partial = saved.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1), encoding="utf-8")
    partial.replace(saved)


def check_length(config: TrainConfig, model: nn.Module) -> None:
    """Refuse prompts and replies that the model has no positions for.

    Raises:
        ValueError: together they may be longer than the model's limit.
    """
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and config.max_prompt_tokens + config.max_new_tokens > limit:
        raise ValueError(
            f"max_prompt_tokens {config.max_prompt_tokens} + max_new_tokens {config.max_new_tokens} is more than the "
            f"{limit} positions of the model; lower one of them"
        )


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
