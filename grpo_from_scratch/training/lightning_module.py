"""The trainer's steps inside PyTorch Lightning, for those who have its loggers and callbacks at hand already.

    module = GRPOLightningModule(TrainConfig(steps=40))
    lightning.Trainer(max_epochs=1, accelerator="cpu", logger=..., callbacks=...).fit(module)

Lightning turns the handle; what a step does is RLTrainer's, whose folder also holds the metrics and checkpoints: a run
that was interrupted goes on from there, so Lightning's own checkpoints are not needed.
"""

from collections.abc import Iterable

import lightning
import torch
from torch.utils.data import DataLoader

from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.trainer import RLTrainer


class GRPOLightningModule(lightning.LightningModule):
    """One epoch is the run, or what is left of it; one batch is the number of a step.

    Rows of metrics are logged as ``self.log_dict`` does.

    Raises:
        ValueError: as RLTrainer, and when Lightning is to spread the run over processes or to touch its precision.
    """

    def __init__(self, config: TrainConfig):
        super().__init__()
        self.automatic_optimization = False
        self.runner = RLTrainer(config)
        self.save_hyperparameters(config.to_dict())

    def on_fit_start(self) -> None:
        if self.trainer.world_size > 1:
            raise ValueError(
                "Lightning's strategies do not know how the groups are spread: use torchrun and grpo train"
            )
        if self.trainer.precision != "32-true":
            raise ValueError(f"set precision in TrainConfig, not in Lightning's Trainer ({self.trainer.precision})")

    def train_dataloader(self) -> Iterable[int]:
        return DataLoader(range(self.runner.progress.step, self.runner.config.steps), batch_size=None)

    def training_step(self, batch: int, batch_idx: int) -> None:
        row = self.runner.advance()
        self.log_dict({name: float(value) for name, value in row.items() if isinstance(value, int | float)})
        if self.runner.progress.step >= self.runner.config.steps:
            self.trainer.should_stop = True  # whatever max_epochs and max_steps say

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.runner.updater.optimizer  # which steps in advance(), for gradients of all pieces
