"""A run in TensorBoard or in Weights & Biases: its settings, every row of metrics, and a table of sampled replies.

    trainer = RLTrainer(config)
    with tracked(trainer, "tensorboard"):
        trainer.train()

metrics.jsonl stays the record: a tracker shows it, in ``config.folder / "tracker"``, and holds nothing that a resume
needs. A run that goes on from a checkpoint writes the steps after it again.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from grpo_from_scratch.dialogue.extras import extra
from grpo_from_scratch.distributed.randomness import key_seed
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.trainer import RLTrainer

SHOWN = 8  # held-out prompts whose replies the table shows, the same ones each time
COLUMNS = ("prompt", "reply", "reward")
Reply = tuple[str, str, float]


class Writer(NamedTuple):
    """Where a tracker's rows and tables of one step go."""

    scalars: Callable[[int, dict[str, float]], None]
    replies: Callable[[int, list[Reply]], None]
    close: Callable[[], None]


def check_tracker(name: str) -> None:
    """Refuse a tracker that cannot be used, before anything runs.

    Raises:
        ValueError: no tracker of this name.
        ImportError: its package is not installed.
    """
    if name not in TRACKERS:
        raise ValueError(f"there is no tracker {name!r}; there are {', '.join(TRACKERS)}")
    extra(name, "trackers", name)


@contextmanager
def tracked(trainer: RLTrainer, name: str) -> Iterator[None]:
    """Show in this tracker what the trainer does inside, after its own callbacks.

    The first process of a job writes; all of them sample the replies.

    Args:
        name: "tensorboard" or "wandb"; W&B works without a network under ``WANDB_MODE=offline``.

    Raises:
        ValueError: no tracker of this name, or W&B has no login here.
        ImportError: its package is not installed.
    """
    check_tracker(name)
    writer = TRACKERS[name](trainer.config) if trainer.world.is_first else None
    on_step, on_evaluation = trainer.on_step, trainer.on_evaluation

    def step(row: dict) -> None:
        if on_step:
            on_step(row)
        writer.scalars(row["step"], scalars(row))

    def evaluation(trainer: RLTrainer) -> dict:
        replies = sampled_replies(trainer)
        if writer:
            writer.replies(trainer.progress.step, replies)
        return on_evaluation(trainer) if on_evaluation else {}

    trainer.on_step, trainer.on_evaluation = step, evaluation
    try:
        yield
    finally:
        trainer.on_step, trainer.on_evaluation = on_step, on_evaluation
        if writer:
            writer.close()


def sampled_replies(trainer: RLTrainer) -> list[Reply]:
    """(prompt, reply, reward) of one reply to each of the first held-out prompts. All ranks sample the same ones."""
    experience = trainer.experience
    rollout = experience.sample(
        trainer.model,
        trainer.tokenizer,
        experience.heldout[:SHOWN],
        1,
        seed=key_seed(trainer.config.seed, "tracked replies"),
        step=0,
    )
    prompts = [" | ".join((*example.background, *example.turns)) for example in rollout.examples]
    return list(zip(prompts, rollout.texts, experience.rewards(rollout).tolist(), strict=True))


def scalars(row: dict[str, Any]) -> dict[str, float]:
    """What of a row of metrics is a number."""
    return {name: float(value) for name, value in row.items() if isinstance(value, int | float) and name != "step"}


def _tensorboard(config: TrainConfig) -> Writer:
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(_folder(config)))
    writer.add_text("config", f"```json\n{json.dumps(config.to_dict(), indent=1)}\n```", 0)

    def write(step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()  # a run is watched while it goes on

    def show(step: int, replies: list) -> None:
        rows = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in (COLUMNS, *replies)]
        rows.insert(1, ["---"] * len(COLUMNS))
        writer.add_text("replies", "\n".join(f"| {' | '.join(row)} |" for row in rows), step)

    return Writer(write, show, writer.close)


def _wandb(config: TrainConfig) -> Writer:
    import wandb

    folder = _folder(config)
    folder.mkdir(parents=True, exist_ok=True)
    identity = hashlib.blake2b(str(config.folder.resolve()).encode(), digest_size=8).hexdigest()
    try:
        run = wandb.init(
            project="grpo_from_scratch",
            name=config.folder.name,
            id=identity,  # a run that goes on from its folder is one run
            resume="allow",
            dir=folder,
            config=config.to_dict(),
            settings=wandb.Settings(console="off", silent=True),
        )
    except wandb.errors.UsageError as error:
        raise ValueError(
            f"W&B cannot start ({error}); log in with `wandb login`, or set WANDB_MODE=offline and `wandb sync` later"
        ) from error
    run.define_metric("*", step_metric="run_step")  # W&B's own counter never goes back, which a resumed run does

    def write(step: int, values: dict[str, float]) -> None:
        run.log(values | {"run_step": step})

    def show(step: int, replies: list) -> None:
        run.log({"replies": wandb.Table(columns=list(COLUMNS), data=[list(row) for row in replies]), "run_step": step})

    return Writer(write, show, run.finish)


def _folder(config: TrainConfig) -> Path:
    return config.folder / "tracker"


TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb}
