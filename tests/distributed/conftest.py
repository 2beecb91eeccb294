"""Real jobs: torchrun, gloo, a policy of a few thousand weights."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from grpo_from_scratch.policy.loading import new_tiny_policy, save_policy

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
WORDS = "red green blue one two three"


@pytest.fixture(scope="session")
def fields(tmp_path_factory) -> dict:
    """TrainConfig's fields for a small run; prompts and replies have many lengths."""
    folder = tmp_path_factory.mktemp("data")
    words = WORDS.split()
    contexts = [" ".join(words[: 1 + i % 5]) + f" {a} {b}" for i, a in enumerate(words) for b in words]
    lines = [{"context": text, "references": [" ".join(text.split()[-2:]), text]} for text in contexts]
    (folder / "dialogues.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    model, tokenizer = new_tiny_policy([WORDS], hidden_size=16, layers=1, heads=2)
    save_policy(model, tokenizer, folder / "policy")
    return {
        "model": str(folder / "policy"),
        "data": f"jsonl:{folder / 'dialogues.jsonl'}",
        "reward": "chrf",
        "steps": 5,
        "prompts_per_step": 5,
        "group_size": 3,
        "max_new_tokens": 6,
        "learning_rate": 0.01,
        "eval_every": 5,
        "eval_prompts": 7,
    }


@pytest.fixture(scope="session")
def torchrun():
    """torchrun("script.py", "argument", …, processes=2, code=0, max_restarts=3) -> the finished job.

    ``code`` is the exit status it must end with, other keywords are torchrun's flags.
    """

    def run(*command: str, processes: int = 2, code: int = 0, **flags) -> subprocess.CompletedProcess:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        launch += [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run([*launch, *command], cwd=HERE, env=environment, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def job(torchrun, tmp_path_factory):
    """job("function of jobs.py", argument, processes=2) -> (what each rank returned, the folder it was given)."""

    def run(name: str, argument, *, processes: int = 2, out: Path | None = None) -> tuple[list, Path]:
        out = out or tmp_path_factory.mktemp(name)
        torchrun("jobs.py", name, json.dumps(argument), str(out), processes=processes)
        return [json.loads((out / f"{rank}.json").read_text()) for rank in range(processes)], out

    return run
