"""KL to the reference: values and gradients."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck

from grpo_from_scratch.objective.kl import exact_kl, kl_estimate

KINDS = ("k1", "k2", "k3")
P, Q = torch.tensor([[0.5, 0.3, 0.2]]).double(), torch.tensor([[0.4, 0.4, 0.2]]).double()
logp = st.floats(-10, 0)  # within what k3 does not cut off


def test_kl_estimate_values():
    """LOSS-03: one token of each kind; k2 and k3 are never negative, which the reversed ratio would not show here."""
    expected = {"k1": [0.2231, -0.2877, 0], "k2": [0.0249, 0.0414, 0], "k3": [0.0231, 0.0457, 0]}
    means = {"k1": 0.025267, "k2": 0.024862, "k3": 0.025267}
    for kind in KINDS:
        estimate = kl_estimate(P.log(), Q.log(), kind)
        torch.testing.assert_close(estimate, torch.tensor([expected[kind]]).double(), atol=5e-5, rtol=0)
        assert float((P * estimate).sum()) == pytest.approx(means[kind], abs=1e-6)
    assert float(exact_kl(P.log(), Q.log())) == pytest.approx(0.025267, abs=1e-6)


@given(logp, logp)
@settings(deadline=None, max_examples=50)
def test_kl_estimate_twin(p, q):
    slow = {"k1": p - q, "k2": (p - q) ** 2 / 2, "k3": math.exp(q - p) - 1 - (q - p)}
    logps, ref_logps, ratio = torch.tensor([[[p]], [[q]], [[1.7]]], dtype=torch.float64)
    for kind in KINDS:
        found = float(kl_estimate(logps, ref_logps, kind))
        assert found == pytest.approx(slow[kind], rel=1e-9, abs=1e-12)
        assert kind == "k1" or found >= 0
    weighted = float(kl_estimate(logps, ref_logps, "k3_weighted", ratio=ratio))
    assert weighted == pytest.approx(1.7 * slow["k3"], rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", [*KINDS, "k3_weighted"])
def test_kl_estimate_gradient(kind):
    """Finite differences, the ratio of k3_weighted included."""
    logps, ref_logps = torch.tensor([[-1.0, -2.0, -0.1]]).double(), torch.tensor([[-1.5, -0.2, -0.1]]).double()

    def estimate(logps):
        ratio = (logps - torch.tensor([[-1.2, -2.0, -0.3]])).exp()
        return kl_estimate(logps, ref_logps, kind, ratio=ratio)

    assert gradcheck(estimate, logps.requires_grad_())


def test_kl_estimate_keeps_the_digits_of_a_small_k3():
    """In float32, eᵈ − 1 − d at d = 1e-4 has not one right digit."""
    k3 = kl_estimate(torch.tensor([[-1.0001]]), torch.tensor([[-1.0]]), "k3")
    d = float(torch.tensor(-1.0) - torch.tensor(-1.0001))
    assert float(k3) == pytest.approx(d * d / 2, rel=1e-2)


@pytest.mark.parametrize("gap, dtype", [(100.0, torch.float32), (12.0, torch.float16), (1000.0, torch.float32)])
@pytest.mark.parametrize("kind", [*KINDS, "k3_weighted"])
def test_kl_estimate_overflow(gap, dtype, kind):
    """LOSS-05: value and gradient stay finite, and k3's gradient is 0 once saturated."""
    logps = torch.tensor([[-gap]], dtype=dtype, requires_grad=True)
    estimate = kl_estimate(logps, torch.zeros(1, 1, dtype=dtype), kind, ratio=torch.ones(1, 1))
    estimate.sum().backward()
    assert estimate.dtype == torch.float32
    assert estimate.isfinite().all() and logps.grad.isfinite().all()
    if kind.startswith("k3"):
        assert logps.grad == 0


def test_kl_estimate_pulls_a_policy_that_left_the_reference():
    """A token far likelier than under the reference is what a KL is for: there k3 must not saturate."""
    logps = torch.tensor([[-0.1]], requires_grad=True)
    kl_estimate(logps, torch.tensor([[-60.0]]), "k3").sum().backward()
    assert logps.grad == 1


def test_kl_estimate_refuses():
    with pytest.raises(ValueError, match="k4"):
        kl_estimate(P.log(), Q.log(), "k4")
    with pytest.raises(ValueError, match="needs ratio"):
        kl_estimate(P.log(), Q.log(), "k3_weighted")


@given(st.lists(st.tuples(st.floats(-4, 4), st.floats(-4, 4)), min_size=1, max_size=5))
@settings(deadline=None, max_examples=30)
def test_exact_kl_twin(logits):
    def softmax(values):
        total = sum(math.exp(v) for v in values)
        return [math.exp(v) / total for v in values]

    p, q = softmax([a for a, _ in logits]), softmax([b for _, b in logits])
    expected = sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))
    table = torch.tensor(logits, dtype=torch.float64)
    assert float(exact_kl(table[:, 0], table[:, 1])) == pytest.approx(expected, abs=1e-9)


def test_exact_kl_gradient():
    logits = torch.tensor([[1.0, -0.5, 0.2], [0.0, 2.0, 1.0]]).double().requires_grad_()
    ref = torch.tensor([[0.0, 0.0, 1.0], [3.0, 0.1, -1.0]]).double()
    assert gradcheck(exact_kl, (logits, ref))


def test_exact_kl_of_16_bit_logits():
    """LP-09: the sum over the vocabulary is taken in float32."""
    logits, ref = 3 * torch.randn(2, 5000, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float16, torch.bfloat16):
        stored, stored_ref = logits.to(dtype), ref.to(dtype)
        torch.testing.assert_close(exact_kl(stored, stored_ref), exact_kl(stored.float(), stored_ref.float()))


def test_exact_kl_impossible_tokens():
    """LP-10: 0·(−inf) in value and gradient, and 16-bit logits at the edge of their range."""
    logits = torch.tensor([0.0, -math.inf, 0.0], requires_grad=True)
    kl = exact_kl(logits, torch.zeros(3))
    kl.backward()
    assert kl.item() == pytest.approx(math.log(3 / 2))
    assert logits.grad.isfinite().all()
    assert exact_kl(logits.detach(), logits.detach()) == 0
    edge = torch.tensor([60000.0, -60000, 0], dtype=torch.float16)
    assert exact_kl(edge, edge) == 0
    assert exact_kl(torch.zeros(3), torch.tensor([0.0, -math.inf, 0.0])) == math.inf
