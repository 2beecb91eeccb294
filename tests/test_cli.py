"""The command line: what it says when something is wrong, and that each command does its job."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from grpo_from_scratch import cli
from grpo_from_scratch.cli.app import data_of, printable
from grpo_from_scratch.policy.loading import new_tiny_policy, save_policy

WORDS = "red green blue one two three"


@pytest.fixture(scope="session")
def policy(tmp_path_factory) -> str:
    model, tokenizer = new_tiny_policy([WORDS], hidden_size=16, layers=1, heads=2)
    folder = tmp_path_factory.mktemp("policy")
    save_policy(model, tokenizer, folder)
    return str(folder)


@pytest.fixture
def dialogues(tmp_path) -> str:
    words = WORDS.split()
    lines = [
        json.dumps({"context": f"{a} {b} {c}", "response": f"{a} {b}"}) for a in words for b in words for c in words
    ]
    (tmp_path / "data.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return f"jsonl:{tmp_path / 'data.jsonl'}"


def grpo(*arguments: str, code: int = 0) -> str:
    """Output of the command, with blanks and line breaks folded."""
    found = CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "200", "GRPO_TRACEBACK": ""})
    assert found.exit_code == code, found.output
    assert "Traceback" not in found.output
    return " ".join(found.output.split())


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["train", "--preset", "grop"], "there is no preset 'grop'; nearest is"),
        (["train", "--model", "tiny", "--data", "embeded"], "unknown data 'embeded'; the nearest valid: embedded"),
        (["train", "--model", "tiny", "--data", "jsonl:nowhere.jsonl"], "no data file nowhere.jsonl"),
        (["train", "--model", "tiny", "--reward", "blue"], "unknown reward 'blue'; the nearest valid: bleu"),
        (["train", "--model", "tiny", "--group-size", "1"], "group_size must be at least 2, not 1"),
        (["train", "--task", "sorting"], "there is no task 'sorting'"),
        (["train", "--model", "tiny", "--set", "clip=1"], "--set takes NAME=VALUE, got 'clip=1'"),
        (["train", "--model", "tiny", "--set", "minibatches=two"], "minibatches takes a value like 1, not 'two'"),
        (["train", "--model", "tiny", "--set", "group_size=2.5"], "group_size takes a value like 8"),
        (["train", "--model", "tiny", "--set", "betas=0.9"], "betas takes two numbers"),
        (["train", "--model", "tiny", "--set", "passes=1.5"], "passes takes a value like 1"),
        (["train", "--model", "tiny", "--set", "device_map=gpu"], "device_map takes a map in JSON"),
        (["train", "--model", "tiny", "--strategy", "layers"], "strategy 'layers' needs a device_map"),
        (["table", "--algorithms", "grpo,grpo"], "an algorithm stands twice"),
        (["table", "--data", "chitchat", "--difficulty", "even"], "--difficulty is of the embedded dialogues"),
        (["train", "--model", "/nowhere/at/all"], "there is no folder '/nowhere/at/all'"),
        (["train", "--model", "nowhere.gguf"], "there is no file 'nowhere.gguf'"),
        (["train", "--model", "tiny", "--set", "lora_rank=-1"], "lora_rank must be at least 1, or 0 to train all"),
        (["chat", "/nowhere/at/all"], "there is no folder '/nowhere/at/all'"),
        (["table", "--algorithms", "gpro"], "there is no algorithm 'gpro' in the table; nearest is 'grpo'"),
        (["table", "--data", "jsonl:nowhere.jsonl"], "no data file nowhere.jsonl"),
        (["table", "--difficulty", "medium"], "difficulty must be mixed, even, hidden or a number"),
        (["vary", "alpah=0.9"], "'alpah' is no setting to vary; nearest is 'alpha'"),
        (["vary", "seed=1,2"], "'seed' is no setting to vary"),
        (["vary", "alpha=0.9,x"], "alpha takes a value like 0.95, not 'x'"),
        (["vary", "alpha=0.9", "alpha=0.99"], "a setting is varied twice"),
        (["vary", "alpha"], "a change is NAME=VALUE,VALUE"),
        (["vary", "shape=8x8,8"], 'shape takes a value like "8x8", not'),
        (["vary", "group_size=8,1"], "group_size must be at least 2, not 1"),
        (["vary", "alpha=0.9,1.5", "--algorithm", "cluster_ema"], "alpha must be within [0, 1], but is 1.5"),
        (["diagnose", "nowhere"], "nowhere is no folder; give the one that `grpo train --out` wrote"),
        (["diagnose", "."], ". has no config.json, so it is not the folder of a run"),
        (["evaluate", "nobody/nothing-at-all"], "neither 'tiny' nor a local folder"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    said = grpo(*arguments, code=1)
    assert said.startswith("grpo: ") and message in said
    assert list(tmp_path.iterdir()) == [], "a command that is refused leaves nothing behind"


@pytest.mark.parametrize(
    "line, message",
    [
        (b'{"context": "hi", "response": "\xff"}', "line 3: not UTF-8"),
        (b"{context: hi}", "line 3: not JSON"),
        (b'{"context": "hi"}', 'line 3: no reply; expected "response"'),
    ],
)
def test_bad_line_is_named_or_skipped_and_counted(line, message, tmp_path, dialogues, policy):
    file = tmp_path / "data.jsonl"
    good = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([*good[:2], line, *good[2:]]))
    arguments = ["evaluate", policy, "--data", dialogues, "--count", "3", "--max-new-tokens", "3"]
    assert message in grpo(*arguments, code=1)
    assert "skipped 1 bad records" in grpo(*arguments, "--skip-bad")


def test_train_set_may_name_what_has_an_option(tmp_path, monkeypatch):
    """What is decided before the run, the fine-tuning and the rate, follows the same settings."""
    made = []
    monkeypatch.setattr("grpo_from_scratch.cli.train._fine_tune", lambda config: made.append(config) or "tuned")
    monkeypatch.setattr("grpo_from_scratch.cli.train._train", lambda config, *_, **__: made.append(config))
    grpo("train", "--set", "data=sort_digits", "--set", "max_new_tokens=7")
    imitated, config = made
    assert (imitated.data, imitated.max_new_tokens) == ("sort_digits", 7)
    assert (config.model, config.data, config.learning_rate) == ("tuned", "sort_digits", 1e-3)
    made.clear()
    grpo("train", "--set", "model=large", "--set", "lora_rank=4")
    assert [(config.model, config.learning_rate) for config in made] == [("large", 3e-4)]
    assert "unknown reward 'blue'" in grpo("train", "--set", "reward=blue", code=1)


def test_train_then_evaluate(tmp_path, dialogues, policy):
    out = tmp_path / "run"
    arguments = ["train", "--model", policy, "--data", dialogues, "--out", str(out), "--steps", "2", "--prompts", "2"]
    arguments += ["--group-size", "2", "--max-new-tokens", "4", "--set", "kl_coef=0.1", "--set", "eval_prompts=4"]
    arguments += ["--strategy", "layers", "--set", 'device_map={"layer_0": "cpu"}']
    assert re.search(r"held-out reward \d\.\d+ -> \d\.\d+", grpo(*arguments))
    config = json.loads((out / "config.json").read_text())
    config = config["config"]
    assert config["preset"]["kl_coef"] == 0.1 and config["eval_prompts"] == 4
    assert config["device_map"] == {"layer_0": "cpu"}
    said = grpo("evaluate", str(out / "policy"), "--data", dialogues, "--count", "4")
    assert {"bleu", "bleu_greedy", "rouge_l", "distinct", "perplexity"} <= set(said.split())
    assert f"4 dialogues of {dialogues}, split report" in said
    assert grpo("evaluate", str(out / "policy"), "--count", "4") == said  # the run says what it was trained on
    assert "other settings (seed: 0 there, 1 here)" in grpo(*arguments, "--seed", "1", code=1)
    said = grpo("diagnose", str(out))
    assert "Nothing looks sick." in said and "Not judged:" in said and "it wants 6 steps, and there are 2" in said


def test_printable_spells_out_what_a_terminal_obeys():
    assert printable("red \x1b[31m, \u202e turned, \r back, 😊 é") == r"red \x1b[31m, \u202e turned, \r back, 😊 é"


def test_policies_of_different_data_want_it_named(tmp_path):
    for name, data in {"one": "embedded:even", "two": "sort_digits"}.items():
        (tmp_path / name / "policy").mkdir(parents=True)
        (tmp_path / name / "config.json").write_text(json.dumps({"config": {"data": data}}))
    one, two = (str(tmp_path / name / "policy") for name in ("one", "two"))
    assert data_of([one, one], "") == "embedded:even"
    assert data_of([one, two], "jsonl:x") == "jsonl:x"
    assert data_of(["somebody/something"], "") == "embedded"
    with pytest.raises(ValueError, match="trained on embedded:even and sort_digits; name one with --data"):
        data_of([one, two], "")
    (tmp_path / "two" / "config.json").write_text("{")
    with pytest.raises(ValueError, match="is damaged, so the policy's data are not known: give --data"):
        data_of([two], "")


def test_train_lora(tmp_path, dialogues, policy):
    """Ten times the learning rate of all weights, and a policy that needs no PEFT."""
    pytest.importorskip("peft")
    out = tmp_path / "run"
    arguments = ["--model", policy, "--data", dialogues, "--steps", "1", "--prompts", "2", "--set", "eval_prompts=2"]
    grpo("train", "--lora", "2", *arguments, "--out", str(out))
    config = json.loads((out / "config.json").read_text())["config"]
    assert config["lora_rank"] == 2 and config["learning_rate"] == 3e-4
    assert "lora" not in (out / "policy" / "model.safetensors").read_bytes().decode("latin-1")


def test_sft_is_cached(tmp_path, dialogues, policy, monkeypatch):
    monkeypatch.setenv("GRPO_CACHE", str(tmp_path / "cache"))
    said = [grpo("sft", "--model", policy, "--data", dialogues, "--steps", "2") for _ in range(2)]
    folders = [re.search(r"Policy: (\S+)", text)[1] for text in said]
    assert folders[0] == folders[1] and len(list((tmp_path / "cache").iterdir())) == 1


def test_interrupted_train_goes_on_to_the_same_policy(tmp_path, dialogues, policy):
    """SIGINT to the real command in the middle of a run, then the same command again: the undisturbed run's bits."""

    def command(out: str) -> list[str]:
        options = [
            "--model",
            policy,
            "--data",
            dialogues,
            "--steps",
            "60",
            "--set",
            "eval_every=0",
            "--max-new-tokens",
            "8",
        ]
        return [sys.executable, "-m", "grpo_from_scratch", "train", *options, "--out", str(tmp_path / out)]

    subprocess.run(command("whole"), check=True, capture_output=True)
    running = subprocess.Popen(command("broken"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "broken" / "metrics.jsonl"
    while running.poll() is None and not (metrics.exists() and len(metrics.read_text().splitlines()) >= 5):
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate()
    assert running.returncode == 130 and "the same command goes on from there" in said
    assert len(metrics.read_text().splitlines()) < 60
    subprocess.run(command("broken"), check=True, capture_output=True)
    whole, broken = ((tmp_path / out / "policy" / "model.safetensors").read_bytes() for out in ("whole", "broken"))
    assert whole == broken
