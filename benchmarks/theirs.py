"""TRL's side: its GRPOTrainer on the work of a benchmark, halted after every lot of steps for the other side's turn."""

import importlib.util
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

from transformers import TrainerCallback

from benchmarks.work import LEARNING_RATE, Work, word_f1
from grpo_from_scratch.policy.loading import load_policy


@dataclass(frozen=True)
class Lot:
    """What a lot of TRL's steps took, and how long its completions were."""

    cpu: float  # process-CPU-seconds
    mean_length: float


def check_installed() -> None:
    """Refuse, before anything is built, when there is nothing to compare with."""
    if importlib.util.find_spec("trl") is None:
        raise ValueError("TRL is not installed: pip install -c constraints.txt -e '.[bench]'.")


def train_in_lots(work: Work, *, lots: int, steps: int, bf16: bool, after: Callable[[Lot], None]) -> None:
    """Train with TRL at its best CPU setting; call ``after`` each lot of ``steps`` steps, which is not on TRL's clock.

    Gradient checkpointing is off, a step is one micro-batch, nothing is logged or saved, prompts come in file order.

    Raises:
        ValueError: TRL is not installed.
    """
    check_installed()
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    count = lots * steps
    lengths: list[int] = []

    def reward(prompts, completions, completion_ids, reference, **columns):
        lengths.extend(map(len, completion_ids))
        return word_f1(prompts, completions, reference)

    model, tokenizer = load_policy(work.folder, device="cpu")
    rows = [row for step in range(count) for row in work.rows_of(step)]
    with tempfile.TemporaryDirectory() as scratch:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=reward,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list(rows),
            callbacks=[_Stops(steps, lengths, after)],
            args=GRPOConfig(
                output_dir=scratch,
                max_steps=count,
                per_device_train_batch_size=work.completions,
                num_generations=work.group_size,
                max_completion_length=work.max_new,
                beta=work.beta,
                learning_rate=LEARNING_RATE,
                lr_scheduler_type="constant",
                loss_type="grpo",
                shuffle_dataset=False,
                bf16=bf16,
                gradient_checkpointing=False,
                logging_strategy="no",
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                dataloader_pin_memory=False,
                use_cpu=True,
            ),
        )
        trainer.train()


class _Stops(TrainerCallback):
    def __init__(self, steps: int, lengths: list[int], after: Callable[[Lot], None]):
        self.steps, self.lengths, self.after = steps, lengths, after

    def on_train_begin(self, *_, **__):
        self.start = time.process_time()

    def on_step_end(self, args, state, control, **_):
        if state.global_step % self.steps == 0:
            cpu = time.process_time() - self.start
            self.after(Lot(cpu, sum(self.lengths) / len(self.lengths)))
            self.lengths.clear()
            self.start = time.process_time()
