"""Ctrl-C on a job of two processes: the step is finished and saved, and the same command goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from jobs import make_config

from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.training.trainer import RLTrainer

ROOT = Path(__file__).parents[2]
STEPS = 20


def command(fields: dict, out: Path) -> list[str]:
    options = {name: fields[name] for name in ("model", "data", "reward")}
    options |= {"preset": "cluster_ema", "out": out, "steps": STEPS, "timeout": 60, "set": "eval_every=0"}
    options |= {"prompts": 4, "group-size": 3, "max-new-tokens": 4, "learning-rate": 0.01}
    given = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [*launch, "-m", "grpo_from_scratch", "train", *given]


def steps(out: Path) -> list[int]:
    file = out / "metrics.jsonl"
    return [json.loads(line)["step"] for line in file.read_text().splitlines()] if file.is_file() else []


def test_interrupted_processes_save_and_the_same_command_goes_on(fields, tmp_path):
    """torchrun passes the signal on to its ranks. At the end there is what one process trains, to rounding."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    out = tmp_path / "broken"
    job = subprocess.Popen(command(fields, out), env=environment, stderr=subprocess.PIPE, text=True)
    while not steps(out) and job.poll() is None:
        time.sleep(0.02)
    job.send_signal(signal.SIGINT)
    said = job.communicate()[1]
    begun = len(steps(out))
    assert job.returncode != 0 and 1 <= begun < STEPS, said
    assert [path.name for path in (out / "checkpoints").iterdir()] == [f"step-{begun:08d}"]
    assert "what is done of a run is kept, and the same command goes on from there" in said
    subprocess.run(command(fields, out), env=environment, capture_output=True, check=True)
    assert steps(out) == list(range(1, STEPS + 1))
    run = {"preset": "cluster_ema", "steps": STEPS, "prompts_per_step": 4, "group_size": 3, "max_new_tokens": 4}
    straight = RLTrainer(make_config(fields | run | {"eval_every": 0}, tmp_path / "straight")).train().model
    trained = dict(load_policy(out / "policy")[0].named_parameters())
    for name, p in straight.named_parameters():
        assert torch.allclose(trained[name], p, rtol=0, atol=1e-5), name
