"""What the ranks of a test's job do: ``jobs.py FUNCTION ARGUMENT FOLDER`` keeps what each rank's call returns."""

import dataclasses
import json
import sys
from pathlib import Path
from unittest.mock import patch

import torch
from safetensors.torch import save_file

from grpo_from_scratch import rewards
from grpo_from_scratch.distributed.process_group import current, joined
from grpo_from_scratch.distributed.sharding import is_sharded, whole
from grpo_from_scratch.distributed.share import contiguous
from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.policy.loading import load_policy, save_policy
from grpo_from_scratch.policy.rollout import given_completions
from grpo_from_scratch.rewards import chrf_reward
from grpo_from_scratch.training.algorithm import Algorithm
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.experience import Experience
from grpo_from_scratch.training.trainer import RLTrainer


def half_missing(prompts, completions, **columns) -> list[float | None]:
    """No score for any reply to every other prompt, so that a rank may have nothing to learn from."""
    scores = chrf_reward(prompts, completions, **columns)
    return [score if len(prompt) % 2 else None for prompt, score in zip(prompts, scores, strict=True)]


def make_config(run: dict, out: Path) -> TrainConfig:
    """{"preset": name, "changes": of the preset, …: TrainConfig's fields} -> TrainConfig."""
    fields = dict(run)
    preset = dataclasses.replace(PRESETS[fields.pop("preset")], **fields.pop("changes", {}))
    return TrainConfig(preset=preset, out=str(out), **fields)


@patch.dict(rewards.REWARDS, half_missing=half_missing)  # only here: other tests go through all rewards
def trained(runs: dict[str, dict], out: Path) -> dict:
    """Each run to its end -> {run: its metrics, and what its algorithm remembers}. Tensors go to ``out/run.rank``."""
    found = {}
    for name, run in runs.items():
        trainer = RLTrainer(make_config(run, out / name))
        metrics = trainer.train().metrics
        save_file(tensors(trainer), out / f"{name}.{current().rank}")
        algorithm = trainer.algorithm
        states = [part.state_dict() for part in (algorithm.ema, algorithm.groups) if part is not None]
        remembered = [{key: tensor.tolist() for key, tensor in state.items()} for state in states]
        found[name] = {"metrics": metrics, "remembered": remembered}
    return found


def tensors(trainer: RLTrainer) -> dict[str, torch.Tensor]:
    """Weights and the last gradients, of the policy and of the critic; in full, if they are sharded."""
    parts = {"model": trainer.model, "critic": trainer.algorithm.critic}
    named = {f"{part}.{n}": p for part, m in parts.items() if m is not None for n, p in m.named_parameters()}
    weights = {name: p.detach().clone() for name, p in named.items()}
    return whole(weights | {f"{name}.grad": p.grad.clone() for name, p in named.items() if p.grad is not None})


def resumed(run: dict, out: Path) -> dict:
    """A run straight through, and one of two trainers; whether they end alike, and how much of the policy is here."""
    straight = RLTrainer(make_config(run, out / "straight"))
    straight.train()
    RLTrainer(make_config(run, out / "broken")).train(until=2)
    trainer = RLTrainer(make_config(run, out / "broken"))
    began = trainer.progress.step
    trainer.train()
    save_policy(trainer.model, trainer.tokenizer, out / "policy", write=current().is_first)
    current().agree("policy is saved", "yes")
    saved, weights = load_policy(out / "policy")[0].state_dict(), whole(trainer.model.state_dict())
    parameters = trainer.model.named_parameters()
    held = {name: (p.to_local() if is_sharded(p) else p).numel() / p.numel() for name, p in parameters}
    return {
        "began": began,
        "same": same(tensors(straight), tensors(trainer)),
        "held": held,
        "saved": same(saved, weights),
    }


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def begun(run: dict, out: Path) -> None:
    """The first two steps of a run that another number of processes goes on with."""
    RLTrainer(make_config(run, out / "begun")).train(until=2)


def gone_on(run: dict, out: Path) -> int:
    """The rest of a run that another number of processes began in ``out/gone_on``; at which step it goes on."""
    trainer = RLTrainer(make_config(run, out / "gone_on"))
    began = trainer.progress.step
    trainer.train()
    save_file(tensors(trainer), out / f"gone_on.{current().rank}")
    return began


def operations(_, out: Path) -> dict:
    """Every operation of a world, with unequal and with no rows, small and larger than a slot."""
    world = current()
    values = [[2.0, 4.0, 6.0], [10.0]][world.rank]
    both = world.sum("rewards", torch.tensor([sum(values), len(values)]))
    large = world.gather("large", torch.full((world.rank * 3000,), 7, dtype=torch.int32))
    parameters = [torch.zeros(3, requires_grad=True) for _ in range(3)]
    parameters[0].grad = torch.full((3,), world.rank + 1.0)
    if world.rank == 1:
        parameters[1].grad = torch.ones(3)
    world.sum_gradients("gradients", parameters)
    return {
        "mean": float(both[0] / both[1]),
        "ragged": [part.tolist() for part in world.gather("ragged", torch.arange(3 * world.rank).view(-1, 3))],
        "bools": [part.tolist() for part in world.gather("bools", torch.ones(world.rank, dtype=torch.bool))],
        "nothing": [list(part.shape) for part in world.gather("nothing", torch.zeros(0, 2))],
        "large": [(len(part), int(part.sum())) for part in large],
        "large sum": float(world.sum("large sum", torch.full((2000,), 0.5)).sum()),
        "objects": world.gather_objects("objects", {"rank": world.rank}),
        "first": world.from_first("first", lambda: world.rank + 7),
        "gradients": [None if p.grad is None else p.grad.tolist() for p in parameters],
    }


def errors(_, out: Path) -> list[str]:
    """What a rank is told when rank 0 cannot do something for all, and when the ranks do not agree."""
    world, said = current(), []

    def full_disk():
        raise OSError("No space left on device")

    for act in (lambda: world.from_first("save", full_disk), lambda: world.agree("seed", str(world.rank))):
        try:
            act()
        except (OSError, RuntimeError) as error:
            said.append(str(error))
    return said


def replies(run: dict, out: Path) -> list[str]:
    """The texts that this rank samples in a first step."""
    config = make_config(run, out)
    model, tokenizer = load_policy(config.model)
    return Experience(config).collect(model, tokenizer, step=0, first_prompt=0).rollout.texts


def split_group(run: dict, out: Path) -> list[float]:
    """This rank's advantages when one group of four, with the rewards 1, 1, 0 and 0, lies on two ranks."""
    config = make_config(run, out)
    model, tokenizer = load_policy(config.model)
    share = contiguous(current(), 1, 4)
    rollout = given_completions(tokenizer, [[1, 5]], [[[6, 7], [8]]])
    batch, _ = Algorithm(config, model).prepare(rollout, torch.tensor([1.0, 1, 0, 0]), share)
    return batch.advantages.tolist()


def everything(arguments: dict[str, dict], out: Path) -> dict:
    """Several functions in one job: it takes longer to start one than to run it."""
    return {name: globals()[name](argument, out) for name, argument in arguments.items()}


def main() -> None:
    name, argument, out = sys.argv[1:]
    torch.set_num_threads(1)
    with joined(timeout=60) as world:
        found = globals()[name](json.loads(argument), Path(out))
    (Path(out) / f"{world.rank}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
