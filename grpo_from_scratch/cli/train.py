"""``grpo train``, ``grpo sft`` and ``grpo evaluate``: one policy."""

import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from tqdm import tqdm

from grpo_from_scratch.cli.app import Data, JudgedOn, SkipBad, Threads, app, data_of, parse_value, plain_errors
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.distributed.process_group import TIMEOUT, World, current, joined
from grpo_from_scratch.evaluation.experiment import MAX_NEW_TOKENS
from grpo_from_scratch.evaluation.measure import measure
from grpo_from_scratch.evaluation.text import perplexity
from grpo_from_scratch.objective.presets import PRESETS, Preset, get_preset
from grpo_from_scratch.policy.loading import load_policy, save_policy
from grpo_from_scratch.rewards import parse_reward
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.sft import SFTConfig, fine_tuned_policy
from grpo_from_scratch.training.trackers import TRACKERS, check_tracker, tracked
from grpo_from_scratch.training.trainer import RLTrainer

TASK_REWARDS = {"sort_digits": "sort_digits", "word_count": "length:0.7,facts:0.3"}
TINY_RATE, LARGE_RATE, LORA_RATE = 1e-3, 3e-5, 3e-4


@app.command()
def train(
    preset: Annotated[str, typer.Option(help=f"The algorithm: {', '.join(PRESETS)}.")] = "grpo",
    model: Annotated[
        str,
        typer.Option(
            help="A Hugging Face folder, GGUF file or hub id; tiny: a new 0.3 M model. Default: tiny, fine-tuned."
        ),
    ] = "",
    data: Data = "embedded",
    task: Annotated[
        str, typer.Option(help=f"A verifiable task, its data and reward: {', '.join(TASK_REWARDS)} or reasoning:NAME.")
    ] = "",
    reward: Annotated[
        str, typer.Option(help="bleu, chrf, rouge_l, facts, … or a weighted sum: bleu:0.8,facts:0.2.")
    ] = "bleu",
    steps: Annotated[int, typer.Option(help="Rollouts to learn from.", min=1)] = 40,
    prompts: Annotated[int, typer.Option(help="Prompts a step.", min=1)] = 8,
    group_size: Annotated[int, typer.Option(help="Completions of each prompt.", min=1)] = 8,
    lora: Annotated[
        int, typer.Option(help="Train LoRA additions of this rank instead of all weights (needs peft).", min=0)
    ] = TrainConfig.lora_rank,
    learning_rate: Annotated[
        float,
        typer.Option(help=f"0: {TINY_RATE} for tiny models, {LARGE_RATE} for others, {LORA_RATE} with --lora.", min=0),
    ] = 0,
    max_new_tokens: Annotated[int, typer.Option(help="Longest completion.", min=1)] = MAX_NEW_TOKENS,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    precision: Annotated[
        str, typer.Option(help="fp32, bf16 or fp16: of forward and backward passes; weights stay float32.")
    ] = TrainConfig.precision,
    strategy: Annotated[
        str,
        typer.Option(
            help="Weights in each process of torchrun: ddp, whole; fsdp, a slice; tensor, parts of layers. Or layers: "
            'whole ones on the devices of one process, --set device_map=\'{"layer_0": "cuda:0", …}\'.'
        ),
    ] = TrainConfig.strategy,
    no_shared_prefix: Annotated[
        bool, typer.Option("--no-shared-prefix", help="Compute the prompt again for every completion, for comparison.")
    ] = False,
    threads: Threads = 1,
    timeout: Annotated[
        float, typer.Option(help="Seconds that the processes of a torchrun job wait for each other.", min=1)
    ] = TIMEOUT,
    skip_bad: SkipBad = False,
    track: Annotated[
        str,
        typer.Option(help=f"Show the run in {' or '.join(TRACKERS)} as well: metrics, settings and sampled replies."),
    ] = "",
    out: Annotated[
        Path, typer.Option(help="Folder of the run; the same command goes on with an interrupted run.")
    ] = Path("runs/train"),
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Any other setting of TrainConfig or Preset; may be repeated."
        ),
    ] = None,
) -> None:
    """Train a policy by reinforcement learning.

    Writes **config.json**, **metrics.jsonl**, checkpoints, and the trained **policy/** as a Hugging Face folder.

    On several processes: **torchrun --standalone --nproc-per-node=2 -m grpo_from_scratch train …**
    """
    with plain_errors(kept="what is done of a run is kept, and the same command goes on from there"):
        torch.set_num_threads(threads)
        if task:
            data, reward = task, task_reward(task)
            model = model or ("tiny" if task == "sort_digits" else "")
        settings = {
            "preset": preset,
            "model": model or "tiny",
            "data": data,
            "reward": reward,
            "steps": steps,
            "prompts_per_step": prompts,
            "group_size": group_size,
            "lora_rank": lora,
            "learning_rate": learning_rate,
            "max_new_tokens": max_new_tokens,
            "seed": seed,
            "precision": precision,
            "strategy": strategy,
            "skip_bad": skip_bad,
            "shared_prefix": not no_shared_prefix,
            "out": str(out),
        }
        config = with_settings(settings, set_ or [])  # which may name what has an option, too: what follows asks it
        tiny = config.model == "tiny"
        rate = config.learning_rate or (TINY_RATE if tiny else LORA_RATE if config.lora_rank else LARGE_RATE)
        config = dataclasses.replace(config, learning_rate=rate)
        parse_reward(config.reward)  # refused now rather than after the fine-tuning
        if track:
            check_tracker(track)
        with joined(timeout=timeout) as world:
            if tiny and not model:
                imitated = {name: getattr(config, name) for name in ("data", "max_new_tokens", "skip_bad")}
                config = dataclasses.replace(config, model=str(_fine_tune(SFTConfig(**imitated))))
            _train(config, world, title=f"training with {preset}", track=track)


def _train(config: TrainConfig, world: World, *, title: str, track: str) -> None:
    trainer = RLTrainer(config, on_step=lambda row: _show(bar, row))
    done, quiet = trainer.progress.step, not world.is_first
    with (
        tqdm(total=config.steps, initial=done, desc=title, unit="step", disable=quiet) as bar,
        tracked(trainer, track) if track else nullcontext(),
    ):
        result = trainer.train()
    save_policy(result.model, result.tokenizer, config.folder / "policy", write=world.is_first)
    if quiet:
        return
    rewards = [row["eval_reward"] for row in result.evaluations]
    if rewards:
        typer.echo(f"held-out reward {rewards[0]:.3f} -> {rewards[-1]:.3f}")
    typer.echo(f"Policy: {config.folder / 'policy'}   metrics: {config.folder / 'metrics.jsonl'}")


@app.command()
def sft(
    data: Data = "embedded",
    model: Annotated[str, typer.Option(help="tiny, a Hugging Face folder or a hub id.")] = "tiny",
    steps: Annotated[int, typer.Option(help="Updates.", min=1)] = SFTConfig.steps,
    learning_rate: Annotated[
        float, typer.Option(help=f"0: {SFTConfig.learning_rate} for tiny, {LARGE_RATE} for others.", min=0)
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of the weights and the order of the data.")] = 0,
    threads: Threads = 1,
    skip_bad: SkipBad = False,
) -> None:
    """Fine-tune a policy on the data's replies. The result is kept in the user's cache, so it is paid for once."""
    with plain_errors():
        torch.set_num_threads(threads)
        rate = learning_rate or (SFTConfig.learning_rate if model == "tiny" else LARGE_RATE)
        config = SFTConfig(model=model, data=data, steps=steps, learning_rate=rate, seed=seed, skip_bad=skip_bad)
        typer.echo(f"Policy: {_fine_tune(config)}")


@app.command()
def evaluate(
    model: Annotated[str, typer.Argument(help="A Hugging Face folder or hub id.")],
    data: JudgedOn = "",
    split: Annotated[str, typer.Option(help="report or tuning: held-out dialogues.")] = "report",
    count: Annotated[int, typer.Option(help="At most so many dialogues.", min=1)] = 500,
    max_new_tokens: Annotated[int, typer.Option(help="Longest reply.", min=1)] = MAX_NEW_TOKENS,
    seed: Annotated[int, typer.Option(help="Of the sampled replies.")] = 0,
    threads: Threads = 1,
    skip_bad: SkipBad = False,
) -> None:
    """Measure a policy on held-out dialogues: BLEU, ROUGE-L, facts, distinct-2, and the references' perplexity."""
    with plain_errors():
        torch.set_num_threads(threads)
        data = data_of([model], data)
        policy, tokenizer = load_policy(model)
        examples = load_examples(data, split, count=count, skip_bad=skip_bad)
        typer.echo(f"{len(examples)} dialogues of {data}, split {split}")
        found = measure(
            policy,
            tokenizer,
            examples,
            max_new_tokens=max_new_tokens,
            max_prompt_tokens=TrainConfig.max_prompt_tokens,
            seed=seed,
        )
        found["perplexity"] = perplexity(policy, tokenizer, [example.references[0] for example in examples])
    for name, value in found.items():
        if value is not None:
            typer.echo(f"{name:14} {value:.4f}")


def task_reward(task: str) -> str:
    """The reward of a verifiable task, whose name is also its data's."""
    name, colon, _ = task.partition(":")
    if task in TASK_REWARDS:
        return TASK_REWARDS[task]
    if name == "reasoning" and colon:
        return name
    raise ValueError(
        f"there is no task {task!r}; there are {', '.join(TASK_REWARDS)} and reasoning:NAME, with a name that "
        "reasoning-gym has"
    )


def with_settings(settings: dict[str, Any], assignments: list[str]) -> TrainConfig:
    """A TrainConfig from these settings and ``NAME=VALUE`` texts, which name fields of TrainConfig or of Preset.

    Raises:
        ValueError: an unknown name, or a value that does not fit.
    """
    preset_fields = {f.name for f in dataclasses.fields(Preset)}
    config_fields = {f.name for f in dataclasses.fields(TrainConfig)}
    changes = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or name not in preset_fields | config_fields:
            names = ", ".join(sorted(preset_fields | config_fields))
            raise ValueError(f"--set takes NAME=VALUE, got {assignment!r}; the names are {names}")
        owner = Preset if name in preset_fields else TrainConfig
        (changes if owner is Preset else settings)[name] = parse_value(text, getattr(owner, name), name)
    preset = dataclasses.replace(get_preset(settings["preset"]), **changes)
    return TrainConfig(**settings | {"preset": preset})


def _fine_tune(config: SFTConfig) -> Path:
    """Under torchrun every rank does the same and takes the same time, so that none waits longer than it may."""
    title, quiet = "fine-tuning (once: it is cached)", not current().is_first
    with tqdm(total=config.steps, desc=title, unit="step", disable=quiet) as bar:
        return fine_tuned_policy(config, on_step=lambda step, loss: (bar.update(), bar.set_postfix(loss=f"{loss:.3f}")))


def _show(bar: tqdm, row: dict) -> None:
    if row["step"]:
        bar.update()
    shown = {"reward": row.get("reward_mean"), "held-out": row.get("eval_reward")}
    bar.set_postfix({name: f"{value:.3f}" for name, value in shown.items() if value is not None})
