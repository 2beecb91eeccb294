"""The benchmarks measure what they say, on a model of a few thousand weights."""

import importlib.util
import json

import pytest
import torch

from benchmarks import against_trl, grpo_step, real, report
from benchmarks.floor import floor_flops, matmul_peak, multiplied_parameters
from benchmarks.ours import Ours, Step
from benchmarks.work import Work, word_f1
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.policy.loading import new_tiny_policy, save_policy
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.trainer import RLTrainer

WORDS = "red green blue one two three four five"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, its tokenizer and five prompts."""
    path = tmp_path_factory.mktemp("policy")
    model, tokenizer = new_tiny_policy([WORDS], hidden_size=16, layers=1, heads=2)
    save_policy(model, tokenizer, path)
    words = WORDS.split()
    rows = [{"prompt": " ".join(words[i : i + 3]), "reference": words[i]} for i in range(5)]
    (path / "data.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


SMALL = ["--groups", "3", "--prompts", "2", "--max-new", "5", "--steps", "2"]


@pytest.mark.parametrize("options", [[], ["--beta", "0.1"], ["--precision", "fp32"], ["--no-shared-prefix"]])
def test_grpo_step_prints_one_line_of_sane_numbers(folder, capsys, options):
    grpo_step.main(["--model", str(folder), *SMALL, *options])
    (line,) = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    assert 1 <= said["mean_length"] <= 5 and said["mean_prompt_tokens"] == 4  # <bos> and three words
    assert set(said["phases_cpu_ms"]) == {"sample", "reward", "prepare", "update"}
    assert 0 < said["samples_per_cpu_s"] <= 6 / (said["phases_cpu_ms"]["update"] / 1e3)
    assert 0 < said["floor"]["fraction_reached"] < 1
    assert {"entropy", "clip_fraction_low", "clip_fraction_high", "grad_norm"} <= set(said["metrics"])
    assert ("kl_k3" in said["metrics"]) == (said["beta"] > 0) == ("--beta" in options)
    assert said["shared_prefix"] == ("--no-shared-prefix" not in options) and said["threads"] == 1
    assert (said["groups"], said["prompts"], said["max_new"], said["steps"]) == (3, 2, 5, 2)


def test_work_says_what_is_wrong_with_the_data(tmp_path):
    with pytest.raises(ValueError, match=r"data.jsonl does not exist: it has one JSON object a line"):
        _ = Work(tmp_path).rows
    for bad in ('{"prompt": "red"}', "[1]", "red"):
        (tmp_path / "data.jsonl").write_text('{"prompt": "a", "reference": "b"}\n' + bad, encoding="utf-8")
        with pytest.raises(ValueError, match=r"line 2 of .*data.jsonl cannot be used"):
            _ = Work(tmp_path).rows
    (tmp_path / "data.jsonl").write_text("\n", encoding="utf-8")
    with pytest.raises(ValueError, match="is empty"):
        _ = Work(tmp_path).rows


def test_grpo_step_says_what_is_wrong_with_the_model(tmp_path):
    with pytest.raises(SystemExit, match="holds no Hugging Face model"):
        grpo_step.main(["--model", str(tmp_path)])


def test_work_goes_through_the_data_round_and_round(folder):
    work = Work(folder, prompts=3)
    order = [work.rows.index(row) for step in range(3) for row in work.rows_of(step)]
    assert order == [0, 1, 2, 3, 4, 0, 1, 2, 3]


def test_word_f1_by_hand():
    """Two of three words are right and two of four wanted ones are there; a repeated word counts as often as wanted."""
    got = word_f1([""] * 4, ["a b x", "a a a", "", "x"], ["a b c d", "a a b", "a", "a"])
    assert got == pytest.approx([2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4), 2 / 3, 0, 0])


def test_ours_learns_from_the_reward(folder):
    """The step is the trainer's: both kinds of forward pass see the same completions and about the same gradient."""
    steps = [Ours(Work(folder, 4, 2, 6), steps=1, bf16=False, packed=packed).step() for packed in (True, False)]
    assert steps[0].completion_tokens == steps[1].completion_tokens
    norms = [step.metrics["grad_norm"] for step in steps]
    assert norms[0] > 0 and norms[0] == pytest.approx(norms[1], rel=1e-4)


def test_floor_by_hand(folder):
    """10 prompt tokens and 12 completion tokens, of which 4 are last ones: 18 tokens, sampled once and trained on."""
    step = Step(cpu={}, prompt_tokens=10, completion_tokens=12, metrics={})
    assert floor_flops(100, step, completions=4, reference=False) == 2 * 100 * 18 * 4
    assert floor_flops(100, step, completions=4, reference=True) == 2 * 100 * 18 * 5


def test_multiplied_parameters():
    """A tied embedding is the LM head; an untied one is only looked up."""
    model, tokenizer = new_tiny_policy([WORDS], hidden_size=16, layers=1, heads=2)
    everything = sum(p.numel() for p in model.parameters())
    assert multiplied_parameters(model) == everything
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    assert multiplied_parameters(model) == everything  # the head now, no longer the embedding


def test_matmul_peak_is_an_honest_rate():
    assert 1e9 < matmul_peak(0.01) < 1e13


def test_against_trl_says_when_trl_is_absent(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"TRL is not installed: pip install .*\[bench\]"):
        against_trl.main(["trained"])


def test_against_trl_refuses_an_unknown_case():
    with pytest.raises(SystemExit, match="there is no case trainde; there are trained, random"):
        against_trl.main(["trainde"])


def test_compare_both_sides_do_the_same_work(folder):
    pytest.importorskip("trl", reason="TRL is not installed: the extra [bench] has it")
    result = against_trl.compare(Work(folder, 3, 2, 5), rounds=2, steps=2)
    assert len(result["times_of_rounds"]) == 2 and result["times"] > 0
    assert all(1 <= length <= 5 for length in result["mean_length"].values())
    assert result["times"] == pytest.approx(result["ours"] / result["trl"], rel=0.5)


def test_report_is_what_the_results_say():
    """README's tables are the ones that the stored results give."""
    page = (report.HERE / "README.md").read_text(encoding="utf-8")
    assert report.table(report.results()) in page and report.steps_table() in page
    for name, result in report.results().items():
        assert result["says"] == against_trl.CASES[name].says
        assert sorted(result["times_of_rounds"])[len(result["times_of_rounds"]) // 2] == result["times"]


def test_real_keeps_the_curve_and_what_is_said_before_and_after(tmp_path, capsys):
    """From a run's folder alone; exactly right is a reward of 1, and no path of this machine is kept."""
    examples = load_examples("word_count", "train", count=20)
    texts = (text for example in examples for text in (*example.turns, *example.references))
    model, tokenizer = new_tiny_policy(texts, hidden_size=16, layers=1)
    save_policy(model, tokenizer, tmp_path / "model")
    settings = {"data": "word_count", "reward": "length:0.7,facts:0.3", "prompts_per_step": 2, "group_size": 2}
    config = TrainConfig(
        model=str(tmp_path / "model"), out=str(tmp_path / "run"), steps=2, eval_every=2, eval_prompts=4, **settings
    )
    with pytest.raises(SystemExit, match="error: .*config.json"):
        real.main([str(tmp_path / "run")])
    result = RLTrainer(config).train()
    save_policy(result.model, result.tokenizer, tmp_path / "run" / "policy")
    real.main([str(tmp_path / "run"), "--out", str(tmp_path / "kept")])
    kept = json.loads((tmp_path / "kept" / "word_count.json").read_text())
    assert [row["step"] for row in kept["curve"]] == [0, 1, 2] and "eval_reward" in kept["curve"][2]
    assert kept["config"]["model"] == "model" and str(tmp_path) not in json.dumps(kept)
    told = capsys.readouterr().out
    for when in ("before", "after"):
        replies = kept[when]["replies"]
        assert len(replies) == real.SHOWN and f"{when}: reward {kept[when]['reward']:.3f}" in told
        for said in replies:
            words = said["reply"].replace(".", " ").split()
            asked, thing = int(said["prompt"].split()[5]), said["prompt"].split()[-1].removesuffix(".")
            exact = len(words) == asked and thing in words
            assert (said["reward"] > 0.999) == exact, said
    assert (tmp_path / "kept" / "word_count.png").stat().st_size > 1000
