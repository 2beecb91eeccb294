"""Exercises of 13_mixed_precision: a dtype for a tensor, a loss scaler, and the order of an update."""

import torch

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

# ---------------------------------------------------------------- cheapest_dtype

HALVES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def cheapest_dtype(values, tolerance):
    values = values[values != 0]
    best, limit = "fp32", tolerance
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        worst = ((values.to(dtype).float() - values) / values).abs().max()
        if worst < limit:
            best, limit = name, worst
    return best


def first_within(values, error_of, tolerance, names=("fp16", "bf16")):
    for name in names:
        if error_of(values, values.to(HALVES[name]).float()) < tolerance:
            return name
    return "fp32"


def looks_at_overflow_only(values, tolerance):
    return "bf16" if values.half().isinf().any() else "fp16"


def by_the_table_of_ranges(values, tolerance):
    sizes = values[values != 0].abs()
    for name, dtype in HALVES.items():
        if sizes.max() <= torch.finfo(dtype).max and sizes.min() >= torch.finfo(dtype).tiny:
            return name
    return "fp32"


def by_the_table_of_precision(values, tolerance):
    for name in HALVES:
        if torch.finfo(HALVES[name]).eps / 2 < tolerance:
            return name
    return "fp32"


def absolute_error(values, tolerance):
    return first_within(values, lambda true, kept: (kept - true).abs().max(), tolerance)


def average_error(values, tolerance):
    return first_within(values[values != 0], lambda true, kept: ((kept - true) / true).abs().mean(), tolerance)


def zeros_are_lost(values, tolerance):
    return first_within(values, lambda true, kept: ((kept - true) / true).abs().max(), tolerance)


def first_that_will_do(values, tolerance):
    return first_within(values[values != 0], lambda true, kept: ((kept - true) / true).abs().max(), tolerance)


def bf16_first(values, tolerance):
    order = ("bf16", "fp16")
    return first_within(values[values != 0], lambda true, kept: ((kept - true) / true).abs().max(), tolerance, order)


CHEAPEST_DTYPE = Exercise(
    cheapest_dtype,
    difficulty="easy",
    minutes=15,
    cases=(
        Case({"values": torch.tensor([0.7, -1.3, 2.9]), "tolerance": 0.01}, "plain numbers, an error of 1 % allowed"),
        Case({"values": torch.tensor([1000.0, -70000.0]), "tolerance": 0.01}, "70000 is beyond fp16"),
        Case({"values": torch.tensor([1e-9, 2e-9]), "tolerance": 0.01}, "both are 0 in fp16"),
        Case({"values": torch.tensor([1e-9, 0.3, 0.2, 0.1]), "tolerance": 0.5}, "one of the four is 0 in fp16"),
        Case({"values": torch.tensor([0.7, -1.3, 2.9]), "tolerance": 1e-4}, "plain numbers, but only 0.01 % allowed"),
        Case({"values": torch.tensor([0.0, 0.7, -1.3]), "tolerance": 0.01}, "0 is 0 in every format"),
        Case({"values": torch.tensor([1e5, 1.0039]), "tolerance": 1e-3}, "one needs bf16's range, one fp16's digits"),
        Case(
            {"values": torch.tensor([1e-7, 3.3e-7]), "tolerance": 0.3},
            "both would do; but fp16 has few digits left for numbers as small as these",
        ),
    ),
    hints=(
        "Do not look limits up: round the values, values.to(torch.float16).float(), and see what has become of them.",
        "The relative error of each value that is not 0 is (rounded - value).abs() / value.abs(); it is 1 for a value "
        "that became 0, and infinite for one that became infinite. The largest one counts.",
        "Compute that largest error for torch.float16 and for torch.bfloat16. Keep those below the tolerance; of two, "
        "return the one with the smaller error; of none, 'fp32'.",
    ),
    mistakes=(
        Mistake(looks_at_overflow_only, "only overflow is looked at; values can also round too far, or to 0"),
        Mistake(
            by_the_table_of_ranges,
            "the range alone decides; a value inside it still loses digits, and below fp16's smallest normal number "
            "there are more numbers, with fewer digits. Round and compare",
        ),
        Mistake(
            by_the_table_of_precision,
            "the digits alone decide; a value may lie outside the range, and of two that will do the more exact one "
            "is wanted. Round and compare",
        ),
        Mistake(absolute_error, "this is the absolute error; a lost 1e-9 does not show in it. Divide by the value"),
        Mistake(average_error, "the errors are averaged, which hides the one value that is lost; take the largest"),
        Mistake(zeros_are_lost, "0 divided by 0 is NaN, and NaN passes no comparison: leave zeros out first"),
        Mistake(
            first_that_will_do,
            "the first format that will do is returned; of two that will do the more exact one is wanted",
        ),
        Mistake(bf16_first, "bf16 is taken wherever it will do; where fp16 is more exact, fp16 is wanted"),
    ),
)

# ---------------------------------------------------------------- scaled_updates


def scaled_updates(weights, gradients, scale, max_norm, interval):
    good, skipped = 0, 0
    for gradient in gradients:
        found = (gradient * scale).half()  # what the backward pass hands over
        found = found.float() / scale
        if not found.isfinite().all():
            scale, good, skipped = scale / 2, 0, skipped + 1
            continue
        weights = weights - found * (max_norm / found.norm()).clamp(max=1)
        good += 1
        if good == interval:
            scale, good = scale * 2, 0
    return weights, scale, skipped


def loop_with(
    weights,
    gradients,
    scale,
    max_norm,
    interval,
    *,
    prepare=lambda half, scale, max_norm: half.float() / scale,
    is_bad=lambda found: not found.isfinite().all(),
    cut=lambda found, max_norm: found * (max_norm / found.norm()).clamp(max=1),
    lower=0.5,
    raise_by=2,
    after_overflow=0,
    steps_on_overflow=False,
    scale_first=False,
):
    """The same loop with one thing changed."""
    good, skipped = 0, 0
    for gradient in gradients:
        half = (gradient * scale).half()
        found = prepare(half, scale, max_norm)
        if is_bad(half.float()):
            skipped += 1
            if steps_on_overflow:
                weights = weights - cut(found.nan_to_num(0, 0, 0), max_norm).nan_to_num()
            scale, good = scale * lower, good * after_overflow
            continue
        good += 1
        if scale_first and good == interval:
            scale = scale * raise_by
            found = prepare(half, scale, max_norm)
        weights = weights - cut(found, max_norm)
        if good == interval:
            scale, good = scale if scale_first else scale * raise_by, 0
    return weights, scale, skipped


def variant(name, **changed):
    def answer(weights, gradients, scale, max_norm, interval):
        return loop_with(weights, gradients, scale, max_norm, interval, **changed)

    answer.__name__ = name
    return answer


def clips_then_unscales(half, scale, max_norm):
    return half.float() * (max_norm / half.float().norm()).clamp(max=1) / scale


def no_scale(weights, gradients, scale, max_norm, interval):
    new, _, _ = loop_with(weights, gradients, 1.0, max_norm, 10**9)
    _, scale, skipped = loop_with(weights, gradients, scale, max_norm, interval)
    return new, scale, skipped


def ascends(weights, gradients, scale, max_norm, interval):
    new, scale, skipped = scaled_updates(weights, gradients, scale, max_norm, interval)
    return 2 * weights - new, scale, skipped


def scaler_case(why, gradients, scale, max_norm, interval):
    weights = torch.tensor([3.0, 4.0]) if scale == 1024 else torch.zeros(2)
    settings = {"scale": scale, "max_norm": max_norm, "interval": interval}
    return Case({"weights": weights, "gradients": torch.tensor(gradients)} | settings, why)


SCALED_UPDATES = Exercise(
    scaled_updates,
    difficulty="medium",
    minutes=20,
    cases=(
        scaler_case("one update, gradient (3, 4) of length 5, cut to length 1", [[3.0, 4.0]], 1024.0, 1.0, 5),
        scaler_case(
            "100 × 1024 is beyond 65504: the first update is skipped, the second goes well at 512",
            [[100.0, 0.5], [100.0, 0.5]],
            1024.0,
            1e6,
            5,
        ),
        scaler_case(
            "gradients shorter than the limit, and too small for float16 without a scale",
            [[2e-8, 1e-8], [1e-8, 2e-8]],
            65536.0,
            1.0,
            5,
        ),
        scaler_case(
            "no overflow: after two updates the scale is doubled, once",
            [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0]],
            4.0,
            10.0,
            2,
        ),
        scaler_case(
            "an overflow between two good updates: these are not two *in a row*",
            [[1.0, 2.0], [1e5, 1.0], [1.0, 1.0]],
            4.0,
            10.0,
            2,
        ),
    ),
    atol=1e-12,
    hints=(
        "For each row, in this order: found = (gradient * scale).half(), then found.float() / scale, then look whether "
        "found.isfinite().all(), then clip, then take it off the weights.",
        "Not finite: halve the scale, set the count of good updates to 0, count a skipped one, and go on with the next "
        "row. Finite: one more good update, and when there are `interval` of them, double the scale and count anew.",
        "Clip with found * (max_norm / found.norm()).clamp(max=1). The weights are a new tensor each time: "
        "weights = weights - …, not weights -= …",
    ),
    mistakes=(
        Mistake(
            variant("clips_before_unscaling", prepare=clips_then_unscales, cut=lambda found, limit: found),
            "the scaled gradient is clipped, and then divided by the scale: what is left is max_norm / scale long. "
            "Divide first",
        ),
        Mistake(
            variant("never_unscales", prepare=lambda half, *_: half.float()),
            "the gradient is never divided by the scale",
        ),
        Mistake(
            variant("unscales_in_half", prepare=lambda half, scale, _: (half / scale).float()),
            "the division happens in float16, where a small gradient becomes 0 after all; call .float() first",
        ),
        Mistake(
            variant("never_clips", cut=lambda found, limit: found),
            "nothing is clipped: a gradient longer than max_norm is to be cut to max_norm",
        ),
        Mistake(
            variant("clips_each_number", cut=lambda found, limit: found.clamp(-limit, limit)),
            "each number is clipped by itself, which turns the gradient; scale the whole of it",
        ),
        Mistake(
            variant("always_cuts_to_length", cut=lambda found, limit: found * limit / found.norm()),
            "every gradient is stretched or cut to length max_norm; a shorter one should stay as it is, so let the "
            "factor be at most 1",
        ),
        Mistake(
            variant("looks_for_nan_only", is_bad=lambda found: found.isnan().any()),
            "an overflow is inf, not NaN: isfinite() finds both",
        ),
        Mistake(
            variant("keeps_the_scale_after_overflow", lower=1.0),
            "the scale stays after an overflow, so the next update overflows as well; halve it",
        ),
        Mistake(
            variant("steps_with_what_is_left", steps_on_overflow=True),
            "the update is made from the numbers that are still finite; they point somewhere else. Leave it out",
        ),
        Mistake(
            variant("never_raises_the_scale", raise_by=1),
            "the scale never grows again; double it after `interval` good updates in a row",
        ),
        Mistake(
            variant("overflow_keeps_the_count", after_overflow=1),
            "the count of good updates goes on after an overflow; it has to start at 0 (good updates *in a row*)",
        ),
        Mistake(
            variant("divides_by_the_new_scale", scale_first=True),
            "the scale is changed before the division: divide by the scale that the loss was multiplied by",
        ),
        Mistake(no_scale, "the gradient is rounded to float16 without the scale, so small ones are 0"),
        Mistake(ascends, "the gradient is added; gradient *descent* takes it off"),
    ),
)

# ---------------------------------------------------------------- which_order


def which_order(gradients, updates, scale, max_norm):
    def clip(gradient):
        return gradient * (max_norm / gradient.norm()).clamp(max=1)

    orders = {
        "right": clip,
        "clipped first": lambda gradient: clip(gradient * scale) / scale,
        "never unscaled": lambda gradient: clip(gradient * scale),
        "never clipped": lambda gradient: gradient,
    }
    for name, made_from in orders.items():
        if torch.allclose(torch.stack([made_from(gradient) for gradient in gradients]), updates, rtol=1e-3, atol=0):
            return name


def by_first_update_only(gradients, updates, scale, max_norm):
    return which_order(gradients[:1], updates[:1], scale, max_norm)


def by_last_update_only(gradients, updates, scale, max_norm):
    return which_order(gradients[-1:], updates[-1:], scale, max_norm)


def with_a_wide_tolerance(gradients, updates, scale, max_norm):
    right = gradients * (max_norm / gradients.norm(dim=1, keepdim=True)).clamp(max=1)
    if (right - updates).abs().max() < 0.01:
        return "right"
    return which_order(gradients, updates, scale, max_norm)


def longer_than_allowed(gradients, updates, scale, max_norm):
    return "right" if updates.norm(dim=1).max() <= max_norm * 1.001 else "never clipped"


def clip_without_limit_of_one(gradients, updates, scale, max_norm):
    right = gradients * max_norm / gradients.norm(dim=1, keepdim=True)
    for name, candidate in {"right": right, "clipped first": right / scale, "never clipped": gradients}.items():
        if torch.allclose(candidate, updates, rtol=1e-3, atol=0):
            return name
    return "never unscaled"


LONG_AND_SHORT = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
TINY_AND_LONG = torch.tensor([[3e-4, 4e-4], [3.0, 4.0]])  # the first is shorter than 1 even when it is scaled
CUT = torch.tensor([[0.6, 0.8], [0.3, 0.4]])
BOTH_CUT = torch.tensor([[0.6, 0.8], [0.6, 0.8]])


def order_case(why, gradients, updates):
    return Case({"gradients": gradients, "updates": updates, "scale": 1024.0, "max_norm": 1.0}, why)


WHICH_ORDER = Exercise(
    which_order,
    difficulty="medium",
    minutes=15,
    cases=(
        order_case("the long gradient is cut to length 1, the short one stays", LONG_AND_SHORT, CUT),
        order_case("two tiny updates", LONG_AND_SHORT, BOTH_CUT / 1024),
        order_case("two gradients of different length, two updates of length 1", LONG_AND_SHORT, BOTH_CUT),
        order_case("the updates are the gradients", LONG_AND_SHORT, LONG_AND_SHORT),
        order_case(
            "small gradients, shorter than the limit, and updates a few times smaller still",
            LONG_AND_SHORT[[1, 1]] / 100,
            BOTH_CUT / 1024,
        ),
        order_case(
            "the first gradient is shorter than the limit even when it is scaled",
            TINY_AND_LONG,
            torch.stack([TINY_AND_LONG[0], CUT[0] / 1024]),
        ),
    ),
    hints=(
        "You know the gradients and the settings, so you can compute what each of the four orders would have made, and "
        "compare.",
        "clip(g) = g * (max_norm / g.norm()).clamp(max=1), for one row g. Then the four are clip(g), clip(g * scale) / "
        "scale, clip(g * scale), and g.",
        "All rows have to agree, since one order can look like another on a single gradient. Compare with "
        "torch.allclose(mine, updates, rtol=1e-3, atol=0): the updates may be tiny.",
    ),
    mistakes=(
        Mistake(
            by_first_update_only,
            "the first update alone is compared; a long gradient is cut to max_norm whether it was unscaled or not. "
            "All of them have to agree",
        ),
        Mistake(by_last_update_only, "only the last update is compared; all of them have to agree"),
        Mistake(
            with_a_wide_tolerance,
            "the tolerance is wider than a whole update: compare in relative terms (rtol=1e-3, atol=0)",
        ),
        Mistake(longer_than_allowed, "the lengths alone are looked at: updates that are much too short pass as right"),
        Mistake(
            clip_without_limit_of_one,
            "your clip stretches short gradients to max_norm; the factor is to be at most 1",
        ),
    ),
)

EXERCISES = (CHEAPEST_DTYPE, SCALED_UPDATES, WHICH_ORDER)
