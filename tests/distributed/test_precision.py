"""Loss scaling by torch.amp, for real on the CPU."""

import math
import warnings

import pytest
import torch
from torch import nn

from grpo_from_scratch.distributed.precision import PRECISIONS, LossScaler, autocast, check_weights

CPU = torch.device("cpu")


def scaler_at(scale: float, growth_interval: int = 2000) -> LossScaler:
    scaler = LossScaler("fp16", CPU)
    scaler.load_state_dict(scaler.state_dict() | {"scale": scale, "growth_interval": growth_interval})
    return scaler


@pytest.fixture(autouse=True)
def no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_step_that_overflows_is_skipped():
    """MP-01: the parameter and the optimizer's state stay, the scale is halved, and the caller is told."""
    p = nn.Parameter(torch.tensor([1.0]))
    optimizer, scaler = torch.optim.AdamW([p], lr=0.1), scaler_at(1024)
    scaler.backward(p.sum() * math.inf)
    norm, made = scaler.step(optimizer, [p], max_norm=1.0)
    assert not made and not math.isfinite(norm)
    assert p.item() == 1.0 and scaler.scale == 512 and not optimizer.state


def test_step_unscales_before_it_clips():
    """MP-02: gradient (3, 4), scale 1024, limit 1: norm 5 and p (2.4, 3.2); clipped first it would be (2.9994, …)."""
    p = nn.Parameter(torch.tensor([3.0, 4.0]))
    optimizer, scaler = torch.optim.SGD([p], lr=1.0), scaler_at(1024)
    scaler.backward(p.square().sum() / 2)
    norm, made = scaler.step(optimizer, [p], max_norm=1.0)
    assert made and norm == pytest.approx(5.0)
    assert torch.allclose(p.detach(), torch.tensor([2.4, 3.2]), atol=1e-5)


def test_scale_grows_again():
    p = nn.Parameter(torch.tensor([1.0]))
    optimizer, scaler = torch.optim.SGD([p], lr=0.0), scaler_at(4.0, growth_interval=2)
    scales = []
    for factor in (math.nan, 1.0, 1.0, 1.0, 1.0):
        optimizer.zero_grad()
        scaler.backward(p.sum() * factor)
        scaler.step(optimizer, [p], max_norm=1.0)
        scales.append(scaler.scale)
    assert scales == [2, 2, 4, 4, 8]


def test_gradients_too_small_for_float16_survive():
    """Below 2⁻²⁵ a float16 gradient is 0; scaled it is exact."""
    p = nn.Parameter(torch.ones(4))
    for precision, expected in (("fp16", 1e-9), ("none", 0.0)):
        p.grad = None
        scaler = scaler_at(2.0**16) if precision == "fp16" else LossScaler("fp32", CPU)
        loss = (p.half() * 1.0).float().sum() * 1e-9  # the gradient passes through float16
        scaler.backward(loss)
        scaler.step(torch.optim.SGD([p], lr=0.0), [p], max_norm=1.0)
        assert torch.allclose(p.grad, torch.full((4,), expected), rtol=1e-2, atol=0)


@pytest.mark.parametrize("scaler", [LossScaler("fp32", CPU), LossScaler("bf16", CPU), scaler_at(0.5)])
def test_step_gives_up_on_a_gradient_that_no_scale_makes_finite(scaler):
    p = nn.Parameter(torch.tensor([1.0]))
    scaler.backward(p.sum() * math.nan)
    with pytest.raises(FloatingPointError, match="not finite"):
        scaler.step(torch.optim.SGD([p], lr=1.0), [p], max_norm=1.0)
    assert p.item() == 1.0


@pytest.mark.parametrize("precision, dtype", PRECISIONS.items())
def test_autocast_computes_products_in_the_precision(precision, dtype):
    layer, x = nn.Linear(3, 3), torch.ones(2, 3)
    with autocast(precision, CPU):
        y = layer(x)
    assert y.dtype == dtype and layer.weight.dtype == torch.float32
    assert layer(x).dtype == torch.float32


def test_check_weights_refuses_half_precision_that_is_trained():
    """MP-03: in a sentence, before anything runs; what is frozen may be as it likes."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).half())
    with pytest.raises(ValueError, match="weight 1.weight is torch.float16, and an optimizer needs float32"):
        check_weights(model)
    model[1].requires_grad_(False)
    check_weights(model)
