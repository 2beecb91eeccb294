"""The noise study: every estimator against enumeration, gradients against a plain loop, and the command end to end."""

import copy
import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex
from typer.testing import CliRunner

from grpo_from_scratch import cli
from grpo_from_scratch.evaluation import noise_terms
from grpo_from_scratch.evaluation.intervals import Interval
from grpo_from_scratch.evaluation.noise import DIAL, NoiseSettings, read_noise, run_noise
from grpo_from_scratch.evaluation.noise_cell import POLICIES, noise_cell, resampled_icc, summary
from grpo_from_scratch.evaluation.noise_figure import noise_to_signal_figure, ratio_figure
from grpo_from_scratch.evaluation.noise_gradients import inner_products, policy_gradients, scores
from grpo_from_scratch.evaluation.noise_terms import (
    Pool,
    global_noise,
    group_noise,
    interval,
    measured_noise,
    own_norm,
    prompt_gradient,
    resample_weights,
    terms,
)
from grpo_from_scratch.objective.advantages import compute_advantages
from grpo_from_scratch.objective.groups import first_order_noise_ratio, icc
from grpo_from_scratch.policy.loading import new_tiny_policy
from grpo_from_scratch.policy.sampling import sample

COMMITTED = Path(__file__).parents[2] / "benchmarks" / "noise"


class Bandit:
    """Equally likely prompts, whose completions are arms of one softmax policy over features: all is enumerable."""

    def __init__(self, seed: int, *, prompts: int = 3, arms: int = 3, features: int = 4, offset: float = 1.0):
        draw = np.random.default_rng(seed)
        phi = draw.normal(size=(prompts, arms, features))
        logits = phi @ draw.normal(size=features)
        self.probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)  # (X, A)
        self.scores = phi - np.einsum("xa,xad->xd", self.probabilities, phi)[:, None]  # (X, A, D)
        self.rewards = draw.normal(size=(prompts, arms)) + offset * draw.normal(size=(prompts, 1))

    def expect(self, values: np.ndarray) -> float:
        return float((self.probabilities * values).sum(1).mean())

    def true_terms(self) -> dict[str, float]:
        """The letters by their definitions."""
        p, s, r = self.probabilities, self.scores, self.rewards
        mean = (p * r).sum(1, keepdims=True)
        delta, epsilon, norm = mean - mean.mean(), r - mean, (s**2).sum(-1)
        h = np.einsum("xa,xa,xad->xd", p, r, s)
        H, signal = float((h**2).sum(1).mean()), float((h.mean(0) ** 2).sum())
        return {
            "H": H,
            "V": H - signal,
            "F": self.expect(norm),
            "S_W": self.expect(epsilon**2 * norm),
            "S_B": self.expect(delta**2 * norm),
            "S_X": 2 * self.expect(delta * epsilon * norm),
            "S_WF": float(((p * epsilon**2).sum(1) * (p * norm).sum(1)).mean()),
            "T": self.expect((r - mean.mean()) ** 2 * norm),
            "signal": signal,
        }

    def true_noise(self, group_size: int) -> tuple[float, float]:
        """N · trCov by enumerating every prompt and group of completions, with the package's advantages."""
        prompts, arms = self.probabilities.shape
        outcomes = np.array(list(itertools.product(range(arms), repeat=group_size)))  # (n, G)
        weight = self.probabilities[:, outcomes].prod(2) / prompts  # (X, n)
        sampled = self.rewards[:, outcomes]  # (X, n, G)
        groups = torch.arange(prompts * len(outcomes)).repeat_interleave(group_size)
        others = compute_advantages("rloo", torch.from_numpy(sampled.flatten()), groups).numpy()
        found = []
        for advantages in (sampled - self.expect(self.rewards), others.reshape(sampled.shape)):
            gradients = np.einsum("xng,xngd->xnd", advantages, self.scores[:, outcomes]) / group_size
            mean = np.einsum("xn,xnd->d", weight, gradients)
            found.append(group_size * float((weight * ((gradients - mean) ** 2).sum(-1)).sum()))
        return tuple(found)

    def pool(self, prompts: list[int], arms: np.ndarray) -> Pool:
        """The pool of these prompts (P,) and their completions (P, n)."""
        rewards = np.array([self.rewards[x, a] for x, a in zip(prompts, arms, strict=True)])
        score = np.array([self.scores[x, a] for x, a in zip(prompts, arms, strict=True)])  # (P, n, D)
        estimates = np.array([prompt_gradient(r, s) for r, s in zip(rewards, score, strict=True)])
        own = np.array([own_norm(r, s @ s.T) for r, s in zip(rewards, score, strict=True)])
        return Pool(rewards, (score**2).sum(-1), own, estimates @ estimates.T)

    def draw(self, prompts: int, completions: int, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        x = generator.integers(len(self.rewards), size=prompts)
        uniforms = generator.random((prompts, completions, 1))
        return x, (uniforms > self.probabilities.cumsum(1)[x][:, None]).sum(-1)


@pytest.mark.parametrize("seed", [0, 1])
def test_terms_have_the_right_expectation(seed):
    """Over all 4096 pools of three prompts with three completions each."""
    bandit = Bandit(seed, prompts=2, arms=2, features=3)
    replies = list(itertools.product(range(2), repeat=3))
    expected = dict.fromkeys(bandit.true_terms(), 0.0)
    for prompts in itertools.product(range(2), repeat=3):
        for arms in itertools.product(replies, repeat=3):
            chosen = [bandit.probabilities[x, list(a)].prod() for x, a in zip(prompts, arms, strict=True)]
            found = terms(bandit.pool(list(prompts), np.array(arms)))
            for name in expected:
                expected[name] += np.prod(chosen) / 2**3 * float(found[name])
    assert expected == pytest.approx(bandit.true_terms(), abs=1e-9)


@pytest.mark.parametrize("group_size", [2, 3, 4])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_exact_formula_is_the_enumerated_covariance(seed, group_size):
    bandit = Bandit(seed)
    known = {name: np.array(value) for name, value in bandit.true_terms().items()}
    found = float(global_noise(known, group_size)), float(group_noise(known, group_size))
    assert found == pytest.approx(bandit.true_noise(group_size), abs=1e-9)


def test_terms_of_weights_are_those_of_the_repeated_prompts_without_pairs_of_copies():
    bandit = Bandit(0)
    pool = bandit.pool(*bandit.draw(6, 4, np.random.default_rng(0)))
    weights = np.array([[1, 1, 1, 1, 1, 1], [2, 0, 1, 1, 2, 0], [0, 1, 1, 1, 0, 0]])
    found = terms(pool, weights)
    plain = terms(pool)
    few = slice(1, 4)
    cut = terms(Pool(pool.rewards[few], pool.norms[few], pool.own[few], pool.gram[few, few]))
    for name in plain:
        assert found[name][0] == pytest.approx(plain[name])
        assert found[name][2] == pytest.approx(cut[name]), "a prompt of weight 0 is not there"
    signal = [pool.gram[i, j] for i, j in itertools.permutations(np.repeat(np.arange(6), weights[1]), 2) if i != j]
    assert found["signal"][1] == pytest.approx(np.mean(signal))
    assert found["H"][1] == pytest.approx(np.repeat(pool.own, weights[1]).mean())


def test_terms_do_not_depend_on_where_rewards_begin():
    bandit = Bandit(1)
    prompts, arms = bandit.draw(5, 4, np.random.default_rng(0))
    before = terms(bandit.pool(prompts, arms))
    bandit.rewards = bandit.rewards + 10
    after = terms(bandit.pool(prompts, arms))
    assert {n: float(v) for n, v in after.items()} == pytest.approx({n: float(v) for n, v in before.items()})


def test_best_group_size_is_the_least_noise():
    known = {name: np.array(value) for name, value in Bandit(2).true_terms().items()}
    sizes = np.linspace(1.01, 60, 100_000)
    least = sizes[np.argmin([float(group_noise(known, size)) for size in sizes])]
    assert float(noise_terms.best_group_size(known)) == pytest.approx(least, abs=1e-2)
    none = noise_terms.best_group_size(known | {"V": np.array(-1.0)})
    assert np.isinf(none)


def bandit_batches(bandit: Bandit, group_size: int, *, batch: int, batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Inner products of batch gradients under both baselines, by numpy alone."""
    prompts, arms = bandit.draw(batch // group_size * batches, group_size, np.random.default_rng(group_size))
    rewards, score = bandit.rewards[prompts[:, None], arms], bandit.scores[prompts[:, None], arms]
    others = (rewards.sum(1, keepdims=True) - rewards) / (group_size - 1)
    products = []
    for advantages in (rewards - bandit.expect(bandit.rewards), rewards - others):
        gradients = (advantages[..., None] * score).reshape(batches, batch, -1).mean(1)
        products.append(gradients @ gradients.T)
    return tuple(products)


@pytest.mark.parametrize("group_size", [2, 8])
def test_measured_ratio_and_pool_agree_with_the_enumerated_one(group_size):
    bandit = Bandit(0, prompts=6, arms=4, features=6)
    truth = bandit.true_terms()
    known = {name: np.array(value) for name, value in truth.items()}
    exact = float(global_noise(known, group_size) / group_noise(known, group_size))
    products = {group_size: bandit_batches(bandit, group_size, batch=64, batches=300)}
    pool = bandit.pool(*bandit.draw(300, 16, np.random.default_rng(5)))
    cell = noise_cell("bandit", "fine-tuned", 0, pool=pool, products=products, batch=64)
    (group,) = cell["groups"]
    for name in ("exact", "measured"):
        found = Interval.from_json(group[name])
        assert found.low < exact < found.high and found.high / found.low < 2, name
    assert cell["terms"]["T"]["low"] < truth["T"] < cell["terms"]["T"]["high"]
    assert cell["terms"]["signal"]["value"] == pytest.approx(truth["signal"], rel=0.3)
    assert cell["best_shapes"]["value"] == pytest.approx(
        float(global_noise(known, 1) / min(group_noise(known, size) for size in (2, 4, 8, 16, 32, 64))), rel=0.2
    )


def test_measured_noise_is_the_trace_of_the_covariance():
    gradients = np.random.default_rng(0).normal(size=(7, 5))
    found = measured_noise(gradients @ gradients.T, resample_weights(7, resamples=3), 64)
    assert found[0] == pytest.approx(64 * np.trace(np.cov(gradients.T)))
    assert found.shape == (4,)


def test_resample_weights_count_what_was_drawn():
    weights = resample_weights(9, resamples=50)
    assert (weights[0] == 1).all() and (weights.sum(1) == 9).all() and weights[1:].var() > 0.5


def test_resampled_icc_is_the_packages():
    rewards = np.random.default_rng(0).normal(size=(5, 4)) + np.arange(5)[:, None]
    weights = np.array([np.ones(5), [2, 0, 1, 1, 1]])
    copies = rewards[[0, 0, 2, 3, 4]]
    expected = [icc(torch.from_numpy(r).flatten(), torch.arange(5).repeat_interleave(4)) for r in (rewards, copies)]
    assert resampled_icc(rewards, weights) == pytest.approx(expected)


def test_interval_widens_with_what_is_unknown():
    draws = np.arange(100.0)
    assert interval(np.array([50.0, *draws])) == Interval(50.0, 2.0, 97.0)
    assert interval(np.array([50.0, *draws, *[np.nan] * 10])) == Interval(50.0, -np.inf, np.inf)


@pytest.fixture(scope="module")
def tiny():
    model, tokenizer = new_tiny_policy(["red green blue one two three"], hidden_size=16, layers=2, heads=2)
    model = model.double()
    rollout = sample(model, tokenizer, ["red green", "one two three"], group_size=3, max_new_tokens=6, seed=1)
    return model, rollout


def plain_score(model, rollout, row: int) -> torch.Tensor:
    """One completion's score by a plain forward pass over its own tokens, and backward."""
    prompt = rollout.prompt_index[row]
    question = rollout.prompt_ids[prompt][rollout.prompt_mask[prompt]]
    answer = rollout.completion_ids[row][rollout.completion_mask[row]]
    logits = model(input_ids=torch.cat([question, answer])[None]).logits[0]
    logps = torch.log_softmax(logits[len(question) - 1 : -1], -1).gather(1, answer[:, None])
    model.zero_grad()
    logps.sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])


def test_scores_are_those_of_a_plain_loop(tiny):
    model, rollout = tiny
    assert rollout.completion_mask.sum(1).unique().numel() > 1  # padding is there to go wrong
    expected = torch.stack([plain_score(model, rollout, row) for row in range(len(rollout))])
    found = scores(model, rollout)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)  # log-probs are float32
    advantages = torch.tensor([[1.0, -2.0, 0.5, 0.0, 3.0, -1.0], [1.0] * 6])
    mixed = policy_gradients(model, rollout, advantages)
    torch.testing.assert_close(mixed, advantages.double() @ expected / 6, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(torch.from_numpy(inner_products(found)), expected @ expected.T, atol=1e-3, rtol=1e-5)


SMALL = NoiseSettings(difficulties=("hidden",), updates=1, prompts=4, replies=3, batch=4, batches=3, group_sizes=(2, 4))


@pytest.fixture
def untrained(monkeypatch, tmp_path):
    """The study begins with a new tiny policy instead of a fine-tuned one."""
    from grpo_from_scratch.evaluation import noise

    whole = noise.train_config  # with a reward that is not 0 for everything an untrained model says
    monkeypatch.setattr(noise, "initial_policies", lambda *_: {0: "tiny"})
    monkeypatch.setattr(noise, "train_config", lambda *a, **k: replace(whole(*a, **k), reward="chrf"))
    monkeypatch.setattr("sys.argv", ["grpo", "noise"])
    return noise


def test_run_noise_writes_and_goes_on_from_what_is_done(untrained, tmp_path, monkeypatch):
    study = run_noise(SMALL, tmp_path, workers=1)
    assert read_noise(tmp_path / "noise.json") == json.loads(json.dumps(study))
    assert [(cell["difficulty"], cell["policy"], cell["updates"]) for cell in study["cells"]] == [
        ("hidden", "fine-tuned", 0),
        ("hidden", "trained", 1),
    ]
    assert all((tmp_path / name).stat().st_size > 10_000 for name in ("ratio.png", "noise_to_signal.png"))
    finished = sorted((tmp_path / "runs").glob("*/cell.json"))
    assert len(finished) == 2
    finished[0].unlink()
    measured = []
    whole = untrained.gradient_pool
    monkeypatch.setattr(untrained, "gradient_pool", lambda *a, **k: measured.append(a) or whole(*a, **k))
    again = run_noise(SMALL, tmp_path, workers=1)
    assert len(measured) == 1 and again["cells"] == study["cells"]


def test_cells_of_other_settings_have_other_folders(tmp_path):
    assert NoiseSettings().key == NoiseSettings(difficulties=("even",), quick=True).key != NoiseSettings(prompts=9).key


def grpo(*arguments: str, code: int = 0) -> str:
    found = CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "200", "GRPO_TRACEBACK": ""})
    assert found.exit_code == code, found.output
    return " ".join(found.output.split())


def test_command(untrained, tmp_path, monkeypatch):
    monkeypatch.setattr(NoiseSettings, "__init__", _smaller(NoiseSettings.__init__))
    said = grpo("noise", "--quick", "--difficulty", "0.5", "--out", str(tmp_path / "o"), "--workers", "1")
    config = read_noise(tmp_path / "o" / "noise.json")["config"]
    assert config["difficulties"] == ["0.5"] and config["quick"]
    assert "0.5 trained" in said and said.endswith(f"Written: {tmp_path / 'o' / 'noise.json'}")


def _smaller(init):
    return lambda self, **asked: init(
        self, **asked | {"updates": 1, "prompts": 4, "replies": 3, "batch": 4, "batches": 3, "group_sizes": (2,)}
    )


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--difficulty", "medium"], "difficulty must be mixed, even, hidden or a number"),
        (["--difficulty", "even,even"], "a difficulty stands twice in even, even"),
        (["--prompts", "2"], "the noise study needs at least 3 prompts, not 2"),
        (["--batches", "1"], "the noise study needs at least 2 batches, not 1"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = grpo("noise", *arguments, code=1)
    assert said.startswith("grpo: ") and message in said and list(tmp_path.iterdir()) == []


def test_settings_refuse_a_group_that_does_not_fit():
    with pytest.raises(ValueError, match="a group of 6 does not fit a batch of 64"):
        NoiseSettings(group_sizes=(2, 6))


def ratios(group_size: int, first_order: float | None, measured: tuple) -> dict:
    low, value, high = measured
    return {
        "group_size": group_size,
        "first_order": {"value": first_order},
        "exact": {"value": 1.0},
        "measured": {"low": low, "value": value, "high": high},
    }


def test_summary_by_hand():
    groups = [
        ratios(2, 1.0, (1.5, 2.0, 3.0)),  # clear, and ICC < 1/2 says the other side
        ratios(4, 2.0, (1.5, 2.0, 3.0)),  # clear and right
        ratios(8, 2.0, (0.5, 2.0, 3.0)),  # not clear
        ratios(16, None, (0.5, 2.0, 3.0)),  # not known
    ]
    cells = [{"policy": "fine-tuned", "icc": {"value": 0.4}, "groups": groups}]
    found = summary(cells)
    assert found["fine-tuned"] == {
        "ratios": 3,
        "first_order": {
            "rms": pytest.approx(np.log(2) / np.sqrt(3), rel=1e-5),
            "max": pytest.approx(np.log(2), rel=1e-5),
            "inside": 2,
        },
        "exact": {"rms": pytest.approx(np.log(2), rel=1e-5), "max": pytest.approx(np.log(2), rel=1e-5), "inside": 1},
        "sign": {"clear": 2, "right": 1},
    }
    nothing = {"rms": None, "max": 0, "inside": 0}
    assert found["trained"] == {"ratios": 0, "first_order": nothing, "exact": nothing, "sign": {"clear": 0, "right": 0}}


@pytest.fixture(scope="module")
def committed():
    return read_noise(COMMITTED / "noise.json")


def test_committed_study_is_whole_and_small(committed):
    assert (COMMITTED / "noise.json").stat().st_size < 200_000
    assert {path.name for path in COMMITTED.iterdir()} == {"noise.json", "ratio.png", "noise_to_signal.png"}
    assert len(committed["config"]["difficulties"]) >= 5 and set(DIAL) <= set(committed["config"]["difficulties"])
    assert len(committed["cells"]) == len(POLICIES) * len(committed["config"]["difficulties"])
    assert not committed["config"]["quick"] and committed["summary"] == summary(committed["cells"])
    for cell in committed["cells"]:
        for group in cell["groups"]:
            assert group["first_order"]["value"] == pytest.approx(
                first_order_noise_ratio(cell["icc"]["value"], group["group_size"]), rel=1e-4
            )
            known = {name: np.array(cell["terms"][name]["value"]) for name in cell["terms"]}
            ratio = global_noise(known, group["group_size"]) / group_noise(known, group["group_size"])
            assert group["exact"]["value"] == pytest.approx(float(ratio), rel=1e-4)


def test_ratio_figure_draws_the_committed_numbers(committed):
    left, right = ratio_figure(committed).axes
    measured = [g["measured"]["value"] for c in committed["cells"] for g in c["groups"]]
    exact = [g["exact"]["value"] for c in committed["cells"] for g in c["groups"]]
    shares = [c["icc"]["value"] for c in committed["cells"] for _ in c["groups"]]
    hollow = [c["policy"] == "trained" for c in committed["cells"] for _ in c["groups"]]
    for axes, across in ((left, shares), (right, exact)):
        points = [line for line in axes.lines if line.get_marker() == "o" and len(line.get_xdata()) == 1]
        assert [line.get_xdata()[0] for line in points] == across
        assert [line.get_ydata()[0] for line in points] == measured
        assert [to_hex(line.get_markerfacecolor()) == "#ffffff" for line in points] == hollow


def test_noise_to_signal_figure_draws_the_committed_numbers(committed):
    panels = noise_to_signal_figure(committed).axes
    names = committed["config"]["difficulties"]
    cells = {(cell["policy"], cell["difficulty"]): cell for cell in committed["cells"]}
    for axes, key in zip(panels, itertools.product(POLICIES, names), strict=True):
        for baseline, line in zip(("global", "group"), axes.lines[::2], strict=True):
            known = [row["value"] for row in cells[key]["noise_to_signal"][baseline] if row]
            assert line.get_ydata().tolist() == pytest.approx(known)


def test_noise_to_signal_figure_shows_an_open_end_and_a_pool_without_signal():
    study = copy.deepcopy(read_noise(COMMITTED / "noise.json"))
    first, second = study["cells"][:2]
    for baseline in ("global", "group"):
        for row in filter(None, first["noise_to_signal"][baseline]):
            row["high"] = None
    second["terms"]["signal"] = {"value": -0.1, "low": -0.3, "high": 0.2}
    figure = noise_to_signal_figure(study)
    figure.draw_without_rendering()
    columns = len(study["config"]["difficulties"])
    opened, silent = figure.axes[0], figure.axes[columns]
    top = opened.get_ylim()[1]
    assert all(band.get_paths()[0].vertices[:, 1].max() > top for band in opened.collections)
    assert not silent.lines and "more noise than signal" in silent.texts[0].get_text()
