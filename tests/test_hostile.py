"""The command and what it opens for a stranger: models, notebooks, options."""

import json
import pickle
import shutil
import string
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from grpo_from_scratch import cli
from grpo_from_scratch.cli import train as command
from grpo_from_scratch.course import notebooks as course_notebooks
from grpo_from_scratch.distributed import notebook as distributed_notebook
from grpo_from_scratch.policy.loading import load_policy, new_tiny_policy, save_policy

INPUTS = [200, pytest.param(5000, marks=pytest.mark.slow)]
WORDS = "red green blue one two three"


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> Path:
    model, tokenizer = new_tiny_policy([WORDS], hidden_size=16, layers=1, heads=2)
    folder = tmp_path_factory.mktemp("policy")
    save_policy(model, tokenizer, folder)
    return folder


@pytest.fixture
def copy(policy, tmp_path) -> Path:
    return Path(shutil.copytree(policy, tmp_path / "copy"))


def edited(file: Path, **changes) -> None:
    file.write_text(json.dumps(json.loads(file.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def says(make) -> str:
    """The sentence of a refusal, or nothing; any other exception is a bug."""
    try:
        make()
    except ValueError as error:
        return str(error)
    return ""


class Mine:
    """What a pickle runs when it is opened."""

    def __init__(self, file: Path):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


CODE = "from pathlib import Path\nPath({!r}).touch()\nclass Evil:\n    pass\n"


def test_model_folder_runs_none_of_its_code(copy, tmp_path):
    ran = tmp_path / "ran"
    (copy / "evil.py").write_text(CODE.format(str(ran)))
    maps = {name: "evil.Evil" for name in ("AutoConfig", "AutoModelForCausalLM", "AutoModel")}
    edited(copy / "config.json", auto_map=maps, model_type="evil", architectures=["Evil"])
    assert "needs code of its own, which is never run here" in says(lambda: load_policy(copy))
    edited(copy / "config.json", model_type="llama")
    edited(
        copy / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.Evil", "evil.Evil"]}, tokenizer_class="Evil"
    )
    says(lambda: load_policy(copy))
    assert not ran.exists()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors"])
def test_model_weights_are_never_unpickled(copy, tmp_path, name):
    ran = tmp_path / "ran"
    (copy / "model.safetensors").unlink()
    (copy / name).write_bytes(pickle.dumps(Mine(ran)))
    assert says(lambda: load_policy(copy)).startswith(f"'{copy}' cannot be loaded")
    torch.save({"x": Mine(ran)}, copy / name)
    assert says(lambda: load_policy(copy)).startswith(f"'{copy}' cannot be loaded")
    assert not ran.exists()


def test_chat_template_reaches_no_python(copy, tmp_path):
    """A template is a program: transformers runs it in jinja's sandbox, and what that refuses is told in a sentence."""
    from grpo_from_scratch.dialogue.dataset import Example, encode_prompt

    template = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    tokenizer = load_policy(copy)[1]
    tokenizer.chat_template = template
    assert "chat template refuses" in says(lambda: encode_prompt(Example(("hi",), ("yes",)), tokenizer))


FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "model.safetensors"]
WRONG = [None, True, -1, 0, 3, 0.5, 1e308, "", "x", [], [1], {}, {"a": 1}]


@pytest.mark.parametrize("inputs", [60, pytest.param(1500, marks=pytest.mark.slow)])
def test_model_folder_of_anything(copy, policy, inputs):
    """Every file cut, overwritten, or with a setting of another type."""

    @settings(max_examples=inputs, deadline=None)
    @given(st.sampled_from(FILES), st.data())
    def check(name, data):
        whole = (policy / name).read_bytes()
        if name.endswith(".json") and data.draw(st.booleans()):
            tree = json.loads(whole)
            key = data.draw(st.sampled_from(sorted(tree)))
            changed = json.dumps(tree | {key: data.draw(st.sampled_from(WRONG))}).encode()
        else:
            at, length = data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, 50))
            changed = whole[:at] + data.draw(st.binary(max_size=9)) + whole[at + length :]
        (copy / name).write_bytes(changed)
        said = says(lambda: load_policy(copy))
        assert not said or str(copy) in said, said
        (copy / name).write_bytes(whole)

    check()


@pytest.mark.parametrize("ends", ["x", ["x", 2], {"a": 1}, 0.5, True])
def test_ends_that_are_no_tokens(copy, ends):
    path = copy / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token_id": ends}))
    said = says(lambda: load_policy(copy))
    assert said.startswith(f"the generation config of '{copy}'") or "cannot be loaded" in said


NO_NOTEBOOKS = [b"", b"\x80\x04pickle", b"{}", b"[]", b'{"cells": 3}', b"[" * 50_000, b"\xff\xfe{"]
NO_NOTEBOOKS += [b'{"cells": [{}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}']


@pytest.mark.parametrize("content", NO_NOTEBOOKS)
def test_notebook_that_is_none(tmp_path, capsys, content):
    """A sentence and nothing written, by the two commands that open notebooks."""
    notebook, out = tmp_path / "x.ipynb", tmp_path / "out.ipynb"
    notebook.write_bytes(content)
    with pytest.raises(SystemExit):
        distributed_notebook.main([str(notebook), "-o", str(out)])
    assert f"error: {notebook} is no notebook" in capsys.readouterr().err
    for what in ("check", "store"):
        assert course_notebooks.main([what, str(notebook)]) == 1
        assert capsys.readouterr().out.startswith("x.ipynb: ")
    assert notebook.read_bytes() == content and not out.exists()


OPTIONS = {
    "--preset": ["grpo", "ppo", "article", "", "x"],
    "--model": ["tiny", "", "/nowhere", ".", "a/b/c", "\0", "-"],
    "--data": ["sort_digits", "embedded:0.5", "embedded:x", "jsonl:/nowhere", "convai2:.", "wizard:", "\0"],
    "--task": ["sort_digits", "", "x"],
    "--reward": ["bleu", "bleu:0.5,facts", "bleu:nan", "", ","],
    "--steps": ["1", "0", "-1", "x", "9" * 30],
    "--prompts": ["1", "2", "x", "1.5"],
    "--group-size": ["1", "2", "9" * 30],
    "--learning-rate": ["0", "-1", "nan", "inf", "1e-3", "x"],
    "--max-new-tokens": ["1", "0", "9" * 30],
    "--seed": ["0", "-1", "9" * 30, "x"],
    "--precision": ["fp32", "fp8", ""],
    "--strategy": ["ddp", "zero", ""],
    "--timeout": ["1", "nan", "inf", "0"],
    "--set": ["alpha=0.5", "alpha=2", "x=1", "passes=2", "betas=[1]", "num_groups=[2,3]", "preset=x", "seed=[", "=\0"],
}


@pytest.mark.parametrize("inputs", INPUTS)
def test_train_options_of_anything(tmp_path, monkeypatch, inputs):
    """Every option up to the training itself, which stands still here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(command, "_train", lambda *_, **__: None)
    monkeypatch.setattr(command, "_fine_tune", lambda *_, **__: tmp_path)
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    words = st.sampled_from(sorted(OPTIONS)).flatmap(
        lambda name: st.tuples(st.just(name), st.sampled_from(OPTIONS[name]) | st.text(string.printable, max_size=5))
    )
    runner = CliRunner()

    @settings(max_examples=inputs, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.lists(words, max_size=4))
    def check(pairs):
        said = runner.invoke(cli.app, ["train", *(word for pair in pairs for word in pair)], env={"GRPO_TRACEBACK": ""})
        assert said.exit_code in (0, 1, 2) and "Traceback" not in said.output, (said.exception, said.output)
        assert said.exception is None or isinstance(said.exception, SystemExit), repr(said.exception)
        assert "\x1b" not in said.output.replace("\x1b[", "") and list(tmp_path.iterdir()) == []

    check()
