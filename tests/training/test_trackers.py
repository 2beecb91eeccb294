"""What a tracker shows is what metrics.jsonl holds; the trackers' own readers read it back, without a network."""

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_from_scratch.training.logs import read_metrics
from grpo_from_scratch.training.trackers import check_tracker, tracked
from grpo_from_scratch.training.trainer import RLTrainer


@pytest.fixture
def config(make_config):
    return make_config(eval_prompts=10)


def run(config, name):
    trainer = RLTrainer(config)
    with tracked(trainer, name):
        trainer.train()
    return read_metrics(config.folder / "metrics.jsonl")


def numbers(rows, name):
    return {row["step"]: row[name] for row in rows if row.get(name) is not None}


def test_tensorboard_shows_metrics_settings_and_replies(config):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    rows = run(config, "tensorboard")
    events = EventAccumulator(str(config.folder / "tracker"))
    events.Reload()
    for name in ("eval_reward", "reward_mean", "grad_norm"):
        shown = {event.step: event.value for event in events.Scalars(name)}
        assert shown == pytest.approx(numbers(rows, name), rel=1e-6)
    texts = [
        event.tensor_proto.string_val[0].decode() for tag in events.Tags()["tensors"] for event in events.Tensors(tag)
    ]
    (settings,) = [json.loads(text.strip("`").removeprefix("json")) for text in texts if text.startswith("```json")]
    assert settings == config.to_dict()
    tables = [text for text in texts if text.startswith("| prompt | reply | reward |")]
    assert len(tables) == len(numbers(rows, "eval_reward"))
    assert len(tables[0].splitlines()) == 2 + 8


def test_a_tracker_changes_no_number(config, make_config):
    pytest.importorskip("tensorboard")
    plain = RLTrainer(make_config("plain", eval_prompts=10)).train().metrics
    shown = run(config, "tensorboard")
    for name in ("eval_reward", "reward_mean", "grad_norm"):
        assert numbers(shown, name) == numbers(plain, name)


def wandb_records(path: Path) -> Iterator:
    """W&B's file is a log of LevelDB's kind: blocks of 32 KiB, of pieces with a header of checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    block, header, place, content = 32768, 7, 7, b""  # the file begins with a mark of seven bytes
    log = path.read_bytes()
    while place + header <= len(log):
        if block - place % block < header:  # too little for another piece: the block ends in zeros
            place += block - place % block
            continue
        _, length, kind = struct.unpack("<IHB", log[place : place + header])
        content += log[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):  # whole, or the last of several
            yield Record.FromString(content)
            content = b""


def test_wandb_offline(config, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    rows = run(config, "wandb")
    (log,) = (config.folder / "tracker").rglob("*.wandb")
    found, settings = {}, {}
    for record in wandb_records(log):
        values = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        if "run_step" in values:
            found.setdefault(values["run_step"], {}).update(values)
        settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update}
    assert settings["learning_rate"] == config.learning_rate
    for name in ("eval_reward", "reward_mean"):
        assert {step: values[name] for step, values in found.items() if name in values} == numbers(rows, name)
    tables = [values for values in found.values() if any("replies" in name for name in values)]
    assert len(tables) == len(numbers(rows, "eval_reward"))
    assert wandb.run is None  # finished


def test_wandb_without_a_login_says_what_to_do(config):
    pytest.importorskip("wandb")
    code = (
        "from grpo_from_scratch.training.config import TrainConfig\n"
        "from grpo_from_scratch.training.trackers import TRACKERS\n"
        f"TRACKERS['wandb'](TrainConfig(out={str(config.folder)!r}))\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB")}
    environment |= {"HOME": str(Path(config.out).parent), "NETRC": os.devnull}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL
    )
    assert "WANDB_MODE=offline" in done.stderr.splitlines()[-1]


def test_unknown_trackers_are_refused():
    with pytest.raises(ValueError, match="no tracker 'mlflow'; there are tensorboard, wandb"):
        check_tracker("mlflow")


def test_an_absent_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match=r"pip install 'grpo-from-scratch\[trackers\]'"):
        check_tracker("wandb")
