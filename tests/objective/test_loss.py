"""The loss that a preset minimises, and the critic's."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from grpo_from_scratch.objective.loss import policy_loss, value_loss
from grpo_from_scratch.objective.presets import PRESETS, Preset
from grpo_from_scratch.objective.surrogates import loss_denominator

ROWS, WIDTH, LIMIT = 4, 5, 7


def batch(seed):
    """A float64 batch whose second row has no reward and hence no real token."""
    generator = torch.Generator().manual_seed(seed)

    def random(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    logps = -random(ROWS, WIDTH).abs() - 0.1
    lengths = torch.randint(1, WIDTH + 1, (ROWS, 1), generator=generator)
    lengths[1] = 0
    return {
        "logps": logps,
        "old_logps": logps + 0.3 * random(ROWS, WIDTH),
        "ref_logps": logps + 0.5 * random(ROWS, WIDTH),
        "advantages": random(ROWS),
        "mask": torch.arange(WIDTH) < lengths,
    }


def clipped(r, a, low, high):
    return -min(r * a, min(max(r, 1 - low), 1 + high) * a)


def gate(r, a):
    tau = 1.0 if a > 0 else 1.05
    return -a * 4 / tau / (1 + math.exp(-tau * (r - 1)))


# Each preset once more, from its paper: a token's loss from its ratio, its sequence's ratio, its advantage and its
# log-prob; the coefficient of k3 in the loss; how tokens are averaged.
PAPERS = {
    "grpo": (lambda r, s, a, lp: clipped(r, a, 0.2, 0.2), 0.04, "sequence"),
    "dr_grpo": (lambda r, s, a, lp: clipped(r, a, 0.2, 0.2), 0, "constant"),
    "rloo": (lambda r, s, a, lp: -a * lp, 0, "constant"),
    "dapo": (lambda r, s, a, lp: clipped(r, a, 0.2, 0.28), 0, "token"),
    "gspo": (lambda r, s, a, lp: clipped(s, a, 3e-4, 4e-4), 0, "sequence"),
    "cispo": (lambda r, s, a, lp: -min(r, 5) * a * lp, 0, "token"),
    "sapo": (lambda r, s, a, lp: gate(r, a), 0, "sequence"),
    "ppo": (lambda r, s, a, lp: clipped(r, a, 0.2, 0.2), 0, "token"),
    "cluster_ema": (lambda r, s, a, lp: -a * lp, 0, "constant"),
}


def slow_policy_loss(name, data):
    token_loss, kl_coef, how = PAPERS[name]
    rows = []
    for row in range(ROWS):
        real = [t for t in range(WIDTH) if data["mask"][row, t]]
        lp, old, ref = ([float(data[key][row, t]) for t in real] for key in ("logps", "old_logps", "ref_logps"))
        logs = [a - b for a, b in zip(lp, old, strict=True)]
        losses = []
        for i in range(len(real)):
            sequence_ratio, d = math.exp(sum(logs) / len(logs)), ref[i] - lp[i]
            loss = token_loss(math.exp(logs[i]), sequence_ratio, float(data["advantages"][row]), lp[i])
            losses.append(loss + kl_coef * (math.exp(d) - 1 - d))
        if losses:
            rows.append(losses)
    if how == "sequence":
        return sum(sum(row) / len(row) for row in rows) / len(rows)
    return sum(map(sum, rows)) / (sum(map(len, rows)) if how == "token" else len(rows) * LIMIT)


@pytest.mark.parametrize("name", PRESETS)
@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=25)
def test_policy_loss_twin(name, seed):
    data = batch(seed)
    loss, _ = policy_loss(name, **data, max_new_tokens=LIMIT)
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(slow_policy_loss(name, data), abs=1e-10)


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "cispo"])
def test_policy_loss_gradient(name):
    """Finite differences of the whole loss in float64 (CISPO's held weight: test_surrogates)."""
    data = batch(11)
    logps = data.pop("logps").requires_grad_()
    assert gradcheck(lambda lp: policy_loss(name, logps=lp, **data, max_new_tokens=LIMIT)[0], logps)


KL_OF_TOKEN = {  # from d = log(ref/π) and the ratio π/π_old
    "k2": lambda d, ratio: d * d / 2,
    "k3": lambda d, ratio: math.exp(d) - 1 - d,
    "k3_weighted": lambda d, ratio: ratio * (math.exp(d) - 1 - d),
}


@pytest.mark.parametrize("estimator", KL_OF_TOKEN)
def test_policy_loss_with_each_kl(estimator):
    """The KL term is the named estimator, averaged as the loss is; its gradient by finite differences."""
    data, preset = batch(12), Preset(kl_coef=0.5, kl_estimator=estimator, aggregate="token")
    kls = []
    for row, t in data["mask"].nonzero().tolist():
        lp, old, ref = (float(data[key][row, t]) for key in ("logps", "old_logps", "ref_logps"))
        kls.append(KL_OF_TOKEN[estimator](ref - lp, math.exp(lp - old)))
    with_kl, without = (policy_loss(replace(preset, kl_coef=coef), **data)[0] for coef in (0.5, 0.0))
    assert (with_kl - without).item() == pytest.approx(0.5 * sum(kls) / len(kls))
    logps = data.pop("logps").requires_grad_()
    assert gradcheck(lambda lp: policy_loss(preset, logps=lp, **data)[0], logps)


def test_policy_loss_first_step_is_zero_and_trains():
    """LOSS-01: on-policy the value is 0 and the gradient is not."""
    logps = torch.full((2, 2), -1.0, requires_grad=True)
    preset = replace(PRESETS["grpo"], kl_coef=0.0)
    advantages, mask = torch.tensor([1.0, -1.0]), torch.ones(2, 2)
    loss, _ = policy_loss(preset, logps=logps, old_logps=logps.detach(), advantages=advantages, mask=mask)
    loss.backward()
    assert loss == 0
    assert logps.grad.tolist() == [[-0.25, -0.25], [0.25, 0.25]]


@pytest.mark.parametrize("name", PRESETS)
def test_policy_loss_no_advantage_no_gradient(name):
    """ADV-01: equal rewards and no KL leave every gradient at 0."""
    data = batch(1) | {"advantages": torch.zeros(ROWS, dtype=torch.float64)}
    logps = data.pop("logps").requires_grad_()
    policy_loss(replace(PRESETS[name], kl_coef=0.0), logps=logps, **data, max_new_tokens=LIMIT)[0].backward()
    assert (logps.grad == 0).all()


@pytest.mark.parametrize("preset", [*PRESETS, *(Preset(kl_coef=0.1, kl_estimator=k) for k in ("k2", "k3_weighted"))])
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_policy_loss_ignores_what_the_mask_hides(preset, garbage):
    """LP-12, ADV-09: garbage in every input behind the mask, NaN as the advantage of the row without reward."""
    clean = batch(2)
    dirty = {key: clean[key].masked_fill(~clean["mask"], garbage) for key in ("logps", "old_logps", "ref_logps")}
    dirty |= {"mask": clean["mask"], "advantages": clean["advantages"].clone()}
    dirty["advantages"][1] = garbage
    results = []
    for data in (clean, dirty):
        logps = data.pop("logps").requires_grad_()
        loss, metrics = policy_loss(preset, logps=logps, **data, max_new_tokens=LIMIT)
        loss.backward()
        results.append((loss, logps.grad, metrics))
    assert torch.equal(results[0][0], results[1][0]) and torch.equal(results[0][1], results[1][1])
    assert results[0][2] == results[1][2]


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("parts", [[[0], [1], [2], [3]], [[0, 1, 2], [3]]])
def test_policy_loss_in_parts_equals_the_whole(name, parts):
    """LOSS-08: micro-batches, one of them without any real token."""
    data = batch(3)
    preset = PRESETS[name]
    whole = data["logps"].clone().requires_grad_()
    policy_loss(preset, **(data | {"logps": whole}), max_new_tokens=LIMIT)[0].backward()
    split = data["logps"].clone().requires_grad_()
    total = loss_denominator(data["mask"], preset.aggregate, max_new_tokens=LIMIT)
    for rows in parts:
        part = {key: value[rows] for key, value in (data | {"logps": split}).items()}
        policy_loss(preset, **part, denominator=total)[0].backward()
    torch.testing.assert_close(split.grad, whole.grad)


@pytest.mark.parametrize("name", PRESETS)
def test_policy_loss_nothing_to_train_on(name):
    """LP-05."""
    data = batch(4) | {"mask": torch.zeros(ROWS, WIDTH)}
    logps = data.pop("logps").requires_grad_()
    loss, metrics = policy_loss(name, logps=logps, **data, max_new_tokens=LIMIT)
    loss.backward()
    assert loss == 0 and (logps.grad == 0).all()
    assert all(value == 0 for value in metrics.values())


def test_policy_loss_kl_in_the_reward_is_not_in_the_loss():
    """PPO-06."""
    data = batch(5)
    strict, free = (policy_loss(replace(PRESETS["ppo"], kl_coef=coef), **data)[0] for coef in (10.0, 0.0))
    assert strict == free


def test_policy_loss_leaves_the_reference_alone():
    """LOSS-12: no gradient reaches the reference, even if someone forgot to freeze it."""
    data = batch(8)
    logps, ref_logps = data.pop("logps").requires_grad_(), data.pop("ref_logps").requires_grad_()
    policy_loss("grpo", logps=logps, ref_logps=ref_logps, **data)[0].backward()
    assert ref_logps.grad is None and logps.grad is not None


def test_policy_loss_token_advantages():
    data = batch(6)
    spread_out = data | {"advantages": data["advantages"][:, None].expand(ROWS, WIDTH)}
    assert policy_loss("ppo", **data)[0] == policy_loss("ppo", **spread_out)[0]


def test_policy_loss_metrics():
    """Tokens stopped by the clip are counted by the side that stops them, over real tokens only."""
    ratios = torch.tensor([[1.5, 1.5, 0.5, 1.0], [0.5, 0.5, 1.5, 9.0]])
    logps = (ratios.log() - 3).requires_grad_()
    data = {"logps": logps, "old_logps": torch.full_like(logps, -3.0), "ref_logps": logps.detach() - 0.5}
    data |= {"advantages": torch.tensor([1.0, -1.0]), "mask": torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])}
    _, metrics = policy_loss("ppo", **data)
    k3 = math.exp(-0.5) - 1 + 0.5
    expected = {"clip_fraction_high": 2 / 7, "clip_fraction_low": 2 / 7, "ratio_mean": 7 / 7, "kl_k1": 0.5, "kl_k3": k3}
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(expected, rel=1e-5)
    assert not any(value.requires_grad for value in metrics.values())
    _, metrics = policy_loss(replace(PRESETS["cispo"], clip_high=0.2), **data)
    assert metrics["clip_fraction_high"].item() == pytest.approx(3 / 7) and metrics["clip_fraction_low"] == 0
    data.pop("ref_logps")
    _, metrics = policy_loss("sapo", **data)
    assert set(metrics) == {"clip_fraction_low", "clip_fraction_high", "ratio_mean"}
    assert metrics["clip_fraction_low"] == metrics["clip_fraction_high"] == 0


def test_policy_loss_sequence_clip_fraction():
    """GSPO clips whole sequences: the fraction follows the sequence's ratio."""
    logps = torch.tensor([[0.1, 0.1, -0.2 + 0.0015], [0.0, 0.0, 0.0]])
    data = {"logps": logps, "old_logps": torch.zeros(2, 3), "advantages": torch.ones(2), "mask": torch.ones(2, 3)}
    _, metrics = policy_loss("gspo", **data)
    assert metrics["clip_fraction_high"].item() == pytest.approx(0.5)


def test_policy_loss_refuses():
    data = batch(7)
    without = {key: value for key, value in data.items() if key != "ref_logps"}
    with pytest.raises(ValueError, match="needs ref_logps"):
        policy_loss("grpo", **without)
    with pytest.raises(ValueError, match="old_logps has shape"):
        policy_loss("ppo", **(data | {"old_logps": torch.zeros(ROWS, 1)}))
    with pytest.raises(ValueError, match="advantages has shape"):
        policy_loss("ppo", **(data | {"advantages": torch.zeros(ROWS, 1)}))
    with pytest.raises(ValueError, match="pass max_new_tokens"):
        policy_loss("dr_grpo", **data)


def test_value_loss_clip_takes_the_larger_error():
    """PPO-04: target 10, old value 5, clip 0.2. A value of 1 counts unclipped, one of 7 clipped, without gradient."""
    for value, error, slope in ((1.0, 81.0, -9.0), (7.0, 23.04, 0.0)):
        values = torch.tensor([[value]], requires_grad=True)
        loss = value_loss(values, torch.tensor([[10.0]]), torch.ones(1, 1), old_values=torch.tensor([[5.0]]), clip=0.2)
        loss.backward()
        assert 2 * loss.item() == pytest.approx(error)
        assert values.grad.item() == pytest.approx(slope)


@given(st.integers(0, 10_000), st.sampled_from([None, 0.3]))
@settings(deadline=None, max_examples=30)
def test_value_loss_twin(seed, clip):
    generator = torch.Generator().manual_seed(seed)
    values, returns, old = torch.randn(3, 2, 4, generator=generator, dtype=torch.float64)
    mask = torch.rand(2, 4, generator=generator) < 0.7
    errors = []
    for row, t in mask.nonzero().tolist():
        value, target, before = (float(x[row, t]) for x in (values, returns, old))
        near = value if clip is None else min(max(value, before - clip), before + clip)
        errors.append(max((value - target) ** 2, (near - target) ** 2) / 2)
    found = value_loss(values, returns, mask, old_values=old, clip=clip)
    assert found.item() == pytest.approx(sum(errors) / max(len(errors), 1), abs=1e-12)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_value_loss_gradient_and_garbage(clip):
    """LP-12, and finite differences."""
    returns, old = torch.randn(2, 2, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    values = (old + torch.tensor([[0.1, 0.5, 0.0], [-0.6, 0, 0]])).requires_grad_()
    assert gradcheck(lambda v: value_loss(v, returns, mask, old_values=old, clip=clip), values)
    value_loss(values, returns, mask, old_values=old, clip=clip).backward()
    for hidden in ({0}, {1}, {2}, {0, 1, 2}):  # which of the inputs hold NaN behind the mask
        dirty = [
            x.detach().masked_fill(mask == 0, math.nan if i in hidden else 0.0)
            for i, x in enumerate((values, returns, old))
        ]
        dirty[0].requires_grad_()
        value_loss(*dirty[:2], mask, old_values=dirty[2], clip=clip).backward()
        assert torch.equal(dirty[0].grad, values.grad)


def test_value_loss_in_parts_equals_the_whole():
    """LOSS-08 for the critic."""
    values, mask = torch.tensor([[1.0, 2, 3], [4, 0, 0]]), torch.tensor([[1, 1, 1], [1, 0, 0]])
    whole = value_loss(values, torch.zeros(2, 3), mask)
    parts = [value_loss(values[i : i + 1], torch.zeros(1, 3), mask[i : i + 1], denominator=4) for i in range(2)]
    assert whole.item() == pytest.approx(sum(parts).item()) == pytest.approx(30 / 8)


def test_value_loss_refuses_clip_without_old_values():
    with pytest.raises(ValueError, match="needs old_values"):
        value_loss(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1), clip=0.2)
