"""Lightning turning the handle leaves what the trainer leaves, number for number."""

import pytest
import torch

from grpo_from_scratch.training.trainer import RLTrainer

lightning = pytest.importorskip("lightning")
from grpo_from_scratch.training.lightning_module import GRPOLightningModule  # noqa: E402  needs lightning


def fit(module, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = lightning.Trainer(**{"max_epochs": 1, "accelerator": "cpu"} | quiet | options)
    trainer.fit(module)
    return trainer


def facts(rows):
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows]


@pytest.mark.parametrize("preset", ["grpo", "ppo", "cluster_ema"])
def test_two_steps_equal_the_trainers(make_config, preset):
    changes = {"preset": preset, "steps": 2, "eval_every": 1}
    alone = RLTrainer(make_config("alone", **changes)).train()
    module = GRPOLightningModule(make_config("lightning", **changes))
    trainer = fit(module)
    again = module.runner.train()  # already at its end: only reads its rows
    assert facts(again.metrics) == facts(alone.metrics)
    for mine, theirs in zip(again.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert float(trainer.callback_metrics["eval_reward"]) == pytest.approx(alone.metrics[-1]["eval_reward"])


def test_an_interrupted_run_goes_on(make_config):
    config = make_config(steps=4, checkpoint_every=2)
    fit(GRPOLightningModule(config), limit_train_batches=2)
    module = GRPOLightningModule(config)
    assert module.runner.progress.step == 2
    fit(module)
    whole = RLTrainer(make_config("whole", steps=4)).train()
    assert facts(module.runner.train().metrics) == facts(whole.metrics)


def test_the_config_says_how_many_steps(make_config):
    """Lightning counts steps of optimizers that it handles itself, and would never stop."""
    module = GRPOLightningModule(make_config(steps=2))
    fit(module, max_epochs=3, max_steps=50)
    assert module.runner.progress.step == 2


def test_lightning_is_not_to_choose_the_precision(make_config):
    with pytest.raises(ValueError, match="set precision in TrainConfig"):
        fit(GRPOLightningModule(make_config(steps=1)), precision="bf16-mixed")
