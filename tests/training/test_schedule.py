import math

import pytest

from grpo_from_scratch.training.schedule import warmup_cosine


def test_warmup_cosine_first_update_moves():
    """MP-04: warm-up over 4 of 10 updates uses 1/4, 2/4, 3/4, 1 and then falls, never 0."""
    rates = [warmup_cosine(update, warmup=4, total=10) for update in range(10)]
    assert rates[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])
    assert all(later < earlier for earlier, later in zip(rates[4:], rates[5:], strict=False))
    assert rates[-1] == pytest.approx(0.5 * (1 + math.cos(math.pi * 5 / 6)))
    assert min(rates) > 0


def test_warmup_cosine_without_warmup_starts_at_full_rate():
    """MP-04."""
    assert warmup_cosine(0, warmup=0, total=10) == 1.0


def test_warmup_cosine_only_warmup_divides_by_nothing():
    """MP-04: total == warmup."""
    assert [warmup_cosine(update, warmup=2, total=2) for update in range(3)] == [0.5, 1.0, 0.0]
