"""A run's settings and folder, damaged or meant badly: a sentence, never a traceback, and nothing written elsewhere."""

import json
import os
import shutil
import string

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from grpo_from_scratch.cli.train import with_settings
from grpo_from_scratch.dialogue.dataset import SPLITS
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.rewards import REWARDS, parse_reward
from grpo_from_scratch.training import checkpoint
from grpo_from_scratch.training.checkpoint import load_checkpoint, save_checkpoint
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.logs import MetricsLog, read_metrics
from grpo_from_scratch.training.trainer import RLTrainer

INPUTS = [200, pytest.param(5000, marks=pytest.mark.slow)]
NUMBERS = [0, 1, -1, 2, 0.5, -0.0, 1e308, 10**30, float("nan"), float("inf")]
VALUES = st.sampled_from(
    [None, True, *NUMBERS, "", "x", "grpo", "1", "\0", "\ud800", [], [1], [2, 3], ["a", "b"], {}, {"a": 1}]
)
KEYS = st.text(string.printable[:95], max_size=9)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def says(make) -> str:
    """The sentence of a refusal, or nothing; any other exception is a bug."""
    try:
        make()
    except ValueError as error:
        assert str(error) and "\n" not in str(error), error
        return str(error)
    return ""


@st.composite
def saved_configs(draw):
    """A saved config of which a few settings were changed, removed or added."""
    tree = TrainConfig(preset=draw(st.sampled_from(sorted(PRESETS)))).to_dict()
    for _ in range(draw(st.integers(1, 3))):
        node = tree["preset"] if isinstance(tree.get("preset"), dict) and draw(st.booleans()) else tree
        name = draw(st.sampled_from(sorted(node)) | st.text(string.ascii_lowercase, max_size=6)) if node else "x"
        if draw(st.booleans()):
            node[name] = draw(VALUES)
        else:
            node.pop(name, None)
    return tree


@pytest.mark.parametrize("inputs", INPUTS)
def test_train_config_from_anything_saved(inputs):
    @settings(max_examples=inputs, deadline=None)
    @given(saved_configs() | ANY_JSON)
    def check(saved):
        made = []
        if not says(lambda: made.append(TrainConfig.from_dict(saved))):
            assert TrainConfig.from_dict(json.loads(json.dumps(made[0].to_dict()))) == made[0]
            assert made[0].total_updates >= 0

    check()


NAMES = sorted({*TrainConfig().to_dict(), *TrainConfig().to_dict()["preset"]})
TEXTS = st.sampled_from(
    ["", "1", "-1", "1.5", "nan", "NaN", "Infinity", "1e999", "true", "null", "[]", "[1,2]", "[0.9,2]"]
)
TEXTS |= st.sampled_from(['"x"', "{}", "[" * 5000, "9" * 5000, "=", "grpo", "ppo", "\ud800"]) | st.text(max_size=9)


@pytest.mark.parametrize("inputs", INPUTS)
def test_set_of_anything(inputs):
    @settings(max_examples=inputs, deadline=None)
    @given(st.lists(st.tuples(st.sampled_from(NAMES) | st.text(max_size=5), TEXTS), min_size=1, max_size=3))
    def check(pairs):
        assignments = [f"{name}={text}" for name, text in pairs]
        says(lambda: with_settings({"preset": "grpo"}, assignments).to_dict())

    check()


@pytest.mark.parametrize("inputs", INPUTS)
def test_specs_of_anything(tmp_path, inputs):
    names = st.sampled_from([*REWARDS, "", "x"])
    parts = st.tuples(
        names, st.sampled_from(["", ":", ":1", ":nan", ":-inf", ":1e999", ":0", ":1_0", "::"]) | st.text(max_size=4)
    )
    rewards = st.lists(parts.map("".join), max_size=4).map(",".join) | st.text(max_size=20)
    files = [str(tmp_path / "nowhere"), str(tmp_path), "~nobody/x", "\0", "x" * 5000, "/dev/null", "..", "\ud800"]
    heads = ["embedded:", "sort_digits", "sort_digits:", "jsonl:", "convai2:", "wizard:", "embedded:0.", ""]
    specs = st.tuples(st.sampled_from(heads), st.sampled_from(files) | st.text(max_size=9)).map("".join)

    @settings(max_examples=inputs, deadline=None)
    @given(rewards, specs, st.sampled_from([*SPLITS, "", "test"]))
    def check(reward, spec, split):
        says(lambda: parse_reward(reward))
        try:
            says(lambda: load_examples(spec, split, count=1))
        except OSError as error:  # no such file, or no name for one
            assert str(error)

    check()


@pytest.mark.parametrize("inputs", INPUTS)
def test_read_metrics_of_anything(tmp_path, inputs):
    path = tmp_path / "metrics.jsonl"
    good = "".join(json.dumps({"step": step, "reward_mean": 0.5}) + "\n" for step in range(3)).encode()

    @settings(max_examples=inputs, deadline=None)
    @given(
        st.integers(0, len(good)),
        st.integers(0, 9),
        st.binary(max_size=9) | st.sampled_from([b"[" * 9000, b"9" * 5000]),
    )
    def check(at, length, inserted):
        path.write_bytes(good[:at] + inserted + good[at + length :])
        rows = []
        if said := says(lambda: rows.extend(read_metrics(path))):
            assert f"{path}, line " in said
        else:
            assert all(type(row["step"]) is int for row in rows)
            MetricsLog(tmp_path, step=1)
            assert [row["step"] for row in read_metrics(path)] == [row["step"] for row in rows if row["step"] <= 1]

    check()


def test_read_metrics_leaves_out_a_last_line_cut_short_and_no_other(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0}\n{"step": 1}\n{"st')
    assert [row["step"] for row in read_metrics(path)] == [0, 1]
    path.write_bytes(b'{"step": 0}\n{"st\n{"step": 2}\n')
    with pytest.raises(ValueError, match="line 2: not JSON"):
        read_metrics(path)


@pytest.mark.parametrize("inputs", INPUTS)
def test_checkpoint_with_any_byte_changed_is_refused(tmp_path, inputs):
    """A flipped bit in a weight would be trained on without a word."""
    path = save_checkpoint(tmp_path, 1, {"a": torch.arange(12.0), "b": {"step": 3, "list": [0.1, "é", None]}})
    files = {name: (path / name).read_bytes() for name in ("state.json", "state.safetensors")}

    @settings(max_examples=inputs, deadline=None)
    @given(st.sampled_from(sorted(files)), st.data())
    def check(name, data):
        whole = files[name]
        at, length = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 5))
        changed = whole[:at] + data.draw(st.binary(max_size=5)) + whole[at + length :]
        (path / name).write_bytes(changed)
        loaded = []
        if not says(lambda: loaded.append(load_checkpoint(path))):
            assert loaded[0]["a"].tolist() == list(range(12)), changed
            assert loaded[0]["b"] == {"step": 3, "list": [0.1, "é", None]}, changed
        (path / name).write_bytes(whole)

    check()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of two steps of four, copied by whoever damages it."""
    return tmp_path_factory.mktemp("finished") / "run"


@pytest.fixture
def interrupted(finished, make_config, tmp_path):
    """A config, and its folder with half a run in it."""
    config = make_config(steps=4, eval_every=0, out="run")
    if not finished.exists():
        RLTrainer(config).train(until=2)
        shutil.copytree(config.folder, finished)
    else:
        shutil.copytree(finished, config.folder)
    return config


def damaged(folder, name, change):
    file = next(folder.rglob(name))
    file.write_bytes(change(file.read_bytes()))


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "state.json", "state.safetensors"])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"{}\n",
        lambda data: b"[1, 2]\n",
        lambda data: b"\x80\x04\x95cposix\nsystem\n",
        lambda data: data.replace(b"e", b"\xff", 1),
        lambda data: b"[" * 100_000,
    ],
)
def test_trainer_refuses_a_damaged_folder_or_goes_on(interrupted, name, change):
    damaged(interrupted.folder, name, change)
    before = {file: file.read_bytes() for file in interrupted.folder.rglob("*") if file.is_file()}
    if said := says(lambda: RLTrainer(interrupted).train()):
        assert str(interrupted.folder) in said
        assert before == {file: file.read_bytes() for file in interrupted.folder.rglob("*") if file.is_file()}
    else:
        assert name == "metrics.jsonl", "what the run needs was damaged and nothing said so"


def rewritten(path, change):
    """A checkpoint changed by someone who also mends the checksum."""
    state = load_checkpoint(path)
    change(state)
    shutil.rmtree(path)
    save_checkpoint(path.parent, int(path.name.removeprefix("step-")), state)


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.pop("model"),
        lambda state: state["model"].popitem(),
        lambda state: state["progress"].update(step="two"),
        lambda state: state["progress"].update(other=1),
        lambda state: state.update(model=[]),
        lambda state: state.update(updater={"optimizer": {"state": {"x": {}}}}),
        lambda state: state["model"].update({name: torch.zeros(1) for name in state["model"]}),
    ],
)
def test_trainer_refuses_a_checkpoint_of_another_make(interrupted, change):
    path = next((interrupted.folder / "checkpoints").iterdir())
    rewritten(path, change)
    assert "delete it to start this one anew" in says(lambda: RLTrainer(interrupted).train())


def test_checkpoint_names_lead_nowhere(tmp_path):
    """A tensor's name is a key among the file's own tensors, whatever path it looks like."""
    secret = tmp_path / "secret.safetensors"
    save_file({"x": torch.ones(1)}, secret)
    path = save_checkpoint(tmp_path / "checkpoints", 1, {"a": torch.zeros(1)})
    for name in ("../../secret.safetensors", str(secret), "/etc/passwd", ["x"], None, {"__tensor__": "/a"}):
        tree = {"a": {"__tensor__": name}}
        written = {"checksum": checkpoint._checksum(tree, path), "state": tree}
        (path / "state.json").write_text(json.dumps(written))
        said = says(lambda: load_checkpoint(path))
        assert "not a readable checkpoint" in said and "what was written" not in said
    save_file({"../../x": torch.ones(1)}, path / "state.safetensors")
    assert list(load_file(path / "state.safetensors")) == ["../../x"] and not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    "name", ["config.partial", "metrics.partial", "metrics.jsonl", "checkpoints", "policy", "policy/x", "tracker"]
)
def test_run_writes_through_no_link(make_config, tmp_path, name):
    """A stranger's run folder, in which a link stands where the run writes."""
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "step-00000001").mkdir(parents=True)
    (elsewhere / "step-00000001" / "state.json").write_text("{}")
    (tmp_path / "file").write_text("mine")
    config = make_config(steps=2, checkpoint_every=1)
    link = config.folder / name
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere if name in ("checkpoints", "policy", "tracker") else tmp_path / "file")
    assert "is a link, and a run writes nothing outside its folder" in says(lambda: RLTrainer(config).train())
    assert (tmp_path / "file").read_text() == "mine" and os.listdir(elsewhere) == ["step-00000001"]
