"""What a run of `grpo train` on a verifiable task did to a real model: its curve and its replies, kept.

    grpo train --model DIR --task word_count --out runs/smollm2 …
    python -m benchmarks.real runs/smollm2

Writes benchmarks/real/TASK.json and TASK.png. Replies are to held-out prompts of the split that the run never saw.
"""

import argparse
import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from grpo_from_scratch.dialogue.dataset import Example, columns, encode_prompt
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.policy.sampling import sample
from grpo_from_scratch.rewards import parse_reward, score
from grpo_from_scratch.training.logs import read_metrics

HERE = Path(__file__).parent / "real"
KEPT = ("step", "completions", "cpu_seconds", "wall_seconds", "eval_reward", "reward_mean", "length", "truncated")
SHOWN = 8  # replies kept beside the numbers


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="the folder of a run that is done")
    parser.add_argument("--out", type=Path, default=HERE)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        found = measured(options.run)
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
    name = found["config"]["data"]
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False), encoding="utf-8")
    draw(found, options.out / f"{name}.png")
    for when in ("before", "after"):
        print(f"{when}: reward {found[when]['reward']:.3f}, exactly right {found[when]['exact']:.0%}")


def measured(run: Path) -> dict:
    """The run's settings and curve, and what the policy says before and after.

    Raises:
        OSError: the folder holds no run, or one without a policy.
    """
    record = json.loads((run / "config.json").read_text(encoding="utf-8"))
    config = record["config"]
    examples = load_examples(config["data"], "report")
    said = {
        when: replies(model, config, examples)
        for when, model in {"before": config["model"], "after": str(run / "policy")}.items()
    }
    config = config | {"model": Path(config["model"]).name, "out": run.name}  # no paths of this machine
    curve = [
        {name: row[name] for name in KEPT if row.get(name) is not None} for row in read_metrics(run / "metrics.jsonl")
    ]
    return {
        "config": config,
        "versions": record["versions"],
        "source_hash": record["source_hash"],
        "curve": curve,
    } | said


def replies(model: str, config: dict, examples: list[Example]) -> dict:
    """One sampled reply to each example: mean reward, the share with a reward of 1, and the first few of them."""
    policy, tokenizer = load_policy(model)
    prompts = [encode_prompt(example, tokenizer, config["max_prompt_tokens"]) for example in examples]
    settings = {name: config[name] for name in ("max_new_tokens", "temperature", "seed")}
    texts = sample(policy, tokenizer, prompts, group_size=1, **settings).texts
    rewards = score(parse_reward(config["reward"]), [e.turns[-1] for e in examples], texts, columns(examples))
    shown = [
        {"prompt": example.turns[-1], "reply": text, "reward": round(reward, 3)}
        for example, text, reward in zip(examples[:SHOWN], texts, rewards.tolist(), strict=False)
    ]
    return {"reward": float(rewards.mean()), "exact": float((rewards > 1 - 1e-6).float().mean()), "replies": shown}


def draw(found: dict, path: Path) -> None:
    """Reward over CPU minutes: of each step's completions, and of held-out prompts."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, style, label in (("reward_mean", ".", "a step's completions"), ("eval_reward", "o-", "held-out prompts")):
        rows = [row for row in found["curve"] if name in row]
        axes.plot([row["cpu_seconds"] / 60 for row in rows], [row[name] for row in rows], style, label=label)
    axes.set(xlabel="CPU minutes of training", ylabel="mean reward", ylim=(0, 1))
    axes.set_title(f"{found['config']['model']}, {found['config']['data']}")
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    main()
