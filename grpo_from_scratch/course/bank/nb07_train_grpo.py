"""Exercises of 07_train_grpo: the schedule, an Adam step, and what the curves of a sick run say."""

import math

import torch

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

# ---------------------------------------------------------------- rate_factor


def rate_factor(update, warmup, total):
    if update < warmup:
        return (update + 1) / warmup
    if update >= total:
        return 0.0
    return 0.5 * (1 + math.cos(math.pi * (update - warmup) / (total - warmup)))


def begins_at_zero(update, warmup, total):
    return update / warmup if update < warmup else rate_factor(update, warmup, total)


def without_warmup(update, warmup, total):
    return rate_factor(update, 0, total)


def descending(descent):
    """An answer that is right but for the way down."""

    def answer(update, warmup, total):
        between = warmup <= update < total
        return descent(update, warmup, total) if between else rate_factor(update, warmup, total)

    return answer


cosine_over_the_whole_run = descending(lambda u, w, n: 0.5 * (1 + math.cos(math.pi * u / n)))
falls_in_a_line = descending(lambda u, w, n: 1 - (u - w) / (n - w))
cosine_below_zero = descending(lambda u, w, n: math.cos(math.pi * (u - w) / (n - w)))
zero_at_the_last_update = descending(lambda u, w, n: 0.5 * (1 + math.cos(math.pi * (u - w) / (n - 1 - w))))


def rises_again(update, warmup, total):
    if update < warmup:
        return rate_factor(update, warmup, total)
    return 0.5 * (1 + math.cos(math.pi * (update - warmup) / (total - warmup)))


def divides_by_no_warmup(update, warmup, total):
    return min((update + 1) / warmup, rate_factor(update, 0, total))


def schedule_case(update, warmup, total, why):
    return Case({"update": update, "warmup": warmup, "total": total}, why)


RATE_FACTOR = Exercise(
    rate_factor,
    difficulty="easy",
    minutes=10,
    cases=(
        schedule_case(0, 4, 20, "the first update of four that warm up: a quarter, and not 0"),
        schedule_case(3, 4, 20, "the last one that warms up has the full rate"),
        schedule_case(4, 4, 20, "the cosine begins at its top"),
        schedule_case(12, 4, 20, "half way between warm-up and end"),
        schedule_case(8, 4, 20, "a quarter of the way down"),
        schedule_case(19, 4, 20, "the last update still moves, a little"),
        schedule_case(20, 4, 20, "the run is over"),
        schedule_case(27, 4, 20, "and stays over"),
        schedule_case(0, 0, 10, "no warm-up: full rate at once"),
    ),
    hints=(
        "Three cases by where the update is: before warmup, before total, after.",
        "While warming up: (update + 1) / warmup. After it, how far along is it, from 0 to 1? "
        "(update - warmup) / (total - warmup)",
        "The cosine of 0 is 1 and of π is -1, so 0.5 * (1 + math.cos(math.pi * done)) goes from 1 to 0.",
    ),
    mistakes=(
        Mistake(begins_at_zero, "the first update has rate 0 and moves nothing: count from one while warming up"),
        Mistake(without_warmup, "there is no warm-up: the first updates rise in equal steps"),
        Mistake(
            cosine_over_the_whole_run,
            "the cosine counts from update 0, so the rate jumps down where warm-up ends: it begins at update warmup",
        ),
        Mistake(falls_in_a_line, "this falls in a straight line; half a cosine is slow, fast, slow"),
        Mistake(cosine_below_zero, "the cosine goes from 1 to -1, and a negative rate climbs: add 1 and take the half"),
        Mistake(
            zero_at_the_last_update,
            "the last update, total - 1, has rate 0 and is wasted: reach 0 at total",
        ),
        Mistake(rises_again, "after total the cosine rises again: return 0.0 there"),
        Mistake(divides_by_no_warmup, "with warmup 0 this divides by 0: look at the update first"),
    ),
)

# ---------------------------------------------------------------- adam_step

BETA1, BETA2, EPS = 0.9, 0.95, 1e-8


def adam_step(weight, slope, first, second, count, rate):
    first = 0.9 * first + 0.1 * slope
    second = 0.95 * second + 0.05 * slope.square()
    size = (second / (1 - 0.95**count)).sqrt() + 1e-8
    return weight - rate * first / (1 - 0.9**count) / size, first, second


def moments_after(slope, first, second):
    return BETA1 * first + (1 - BETA1) * slope, BETA2 * second + (1 - BETA2) * slope.square()


def without_correction(weight, slope, first, second, count, rate):
    first, second = moments_after(slope, first, second)
    return weight - rate * first / (second.sqrt() + EPS), first, second


def plain_descent(weight, slope, first, second, count, rate):
    return weight - rate * slope, *moments_after(slope, first, second)


def climbs(weight, slope, first, second, count, rate):
    moved, first, second = adam_step(weight, slope, first, second, count, rate)
    return 2 * weight - moved, first, second


def eps_inside_the_root(weight, slope, first, second, count, rate):
    first, second = moments_after(slope, first, second)
    size = (second / (1 - BETA2**count) + EPS).sqrt()
    return weight - rate * first / (1 - BETA1**count) / size, first, second


def keeps_corrected_moments(weight, slope, first, second, count, rate):
    first, second = moments_after(slope, first, second)
    first, second = first / (1 - BETA1**count), second / (1 - BETA2**count)
    return weight - rate * first / (second.sqrt() + EPS), first, second


def in_place(weight, slope, first, second, count, rate):
    new = adam_step(weight, slope, first, second, count, rate)
    return tuple(old.copy_(tensor) for old, tensor in zip((weight, first, second), new, strict=True))


def adam_case(slope, first, second, count, rate, why):
    inputs = {
        "weight": torch.tensor([0.5, -0.2, 0.1]),
        "slope": torch.tensor(slope),
        "first": torch.tensor(first),
        "second": torch.tensor(second),
        "count": count,
        "rate": rate,
    }
    return Case(inputs, why)


ADAM_STEP = Exercise(
    adam_step,
    difficulty="medium",
    minutes=15,
    cases=(
        adam_case([2.0, -0.5, 1e-4], [0.0] * 3, [0.0] * 3, 1, 0.01, "the first update: each weight moves by 0.01"),
        adam_case([0.3, 0.3, -0.1], [0.1, -0.2, 0.0], [0.04, 0.09, 0.01], 3, 0.01, "the third update"),
        adam_case([0.0, 1.0, 0.0], [0.1, -0.2, 0.0], [0.04, 0.09, 0.0], 7, 0.002, "a weight without any slope stays"),
    ),
    hints=(
        "First the two running means: 0.9 of the old first and 0.1 of the slope; the same with 0.95 for the square.",
        "Divide the first by 1 - 0.9**count and the second by 1 - 0.95**count, for the step only: what you return are "
        "the means themselves.",
        "weight - rate * (first / (1 - 0.9**count)) / ((second / (1 - 0.95**count)).sqrt() + 1e-8), first, second",
    ),
    mistakes=(
        Mistake(
            without_correction,
            "the means began at 0 and are too small for a while, not equally: divide them by 1 - beta**count",
        ),
        Mistake(plain_descent, "the weight moves by rate * slope: that is plain descent, without the division"),
        Mistake(climbs, "it goes uphill: subtract the step"),
        Mistake(
            eps_inside_the_root,
            "eps is inside the root, where 1e-8 becomes 1e-4 and holds weights with small slopes back: add it outside",
        ),
        Mistake(
            keeps_corrected_moments,
            "the corrected means are returned; the next update would correct them once more. Correct for the step only",
        ),
        Mistake(in_place, "the inputs were changed in place: return new tensors"),
    ),
)

# ---------------------------------------------------------------- diagnose

# The notebook's runs with seed 1 and the policy of fine-tuning seed 1, to three digits. Row 0 is from before training.
KEYS = (
    "step",
    "eval_reward",
    "bleu",
    "reward_mean",
    "kl_k3",
    "entropy",
    "groups_without_signal",
    "length",
    "grad_norm",
)
RECORDED = {
    "healthy": (
        (0, 0.371, 0.347),
        (4, 0.471, 0.454, 0.306, 0.0693, 0.399, 0.0, 13.5, 0.333),
        (8, 0.519, 0.48, 0.538, 0.168, 0.374, 0.0, 14.7, 0.471),
        (12, 0.517, 0.503, 0.62, 0.0856, 0.356, 0.0, 15.0, 0.503),
    ),
    "rate too high": (
        (0, 0.371, 0.347),
        (4, 0.0127, 0.0132, 0.0165, 13.6, 3.58, 0.0, 24.0, 2.82),
        (8, 0.0221, 0.021, 0.0218, 6.97, 3.29, 0.0, 24.0, 0.444),
        (12, 0.0235, 0.024, 0.0238, 7.15, 3.3, 0.0, 24.0, 0.507),
    ),
    "reward hacked": (
        (0, -1.69, 0.347),
        (4, -1.06, 0.212, -1.51, 0.149, 0.509, 0.0, 9.19, 0.478),
        (8, -0.698, 0.144, -0.777, 0.48, 0.522, 0.0, 6.14, 0.641),
        (12, -0.728, 0.137, -0.659, 0.387, 0.427, 0.125, 5.38, 1.45),
    ),
    "no signal": (
        (0, 0.6, 0.347),
        (4, 0.635, 0.351, 0.35, 83.4, 0.0195, 0.625, 17.4, 123.0),
        (8, 0.651, 0.383, 0.627, 7.96, 0.0167, 0.625, 15.6, 163.0),
        (12, 0.651, 0.38, 0.663, 0.522, 0.0237, 0.625, 17.0, 3.52),
    ),
    "rate too low": (
        (0, 0.371, 0.347),
        (4, 0.405, 0.359, 0.238, 0.000164, 0.483, 0.0, 11.9, 0.448),
        (8, 0.412, 0.358, 0.463, 0.000476, 0.504, 0.0, 12.2, 0.634),
        (12, 0.413, 0.366, 0.462, 0.000419, 0.467, 0.0, 12.3, 0.676),
    ),
    "KL too strong": (
        (0, 0.371, 0.347),
        (4, 0.392, 0.383, 0.237, 0.0244, 0.5, 0.0, 11.9, 8.21),
        (8, 0.353, 0.364, 0.481, 0.0187, 0.505, 0.0, 12.6, 3.04),
        (12, 0.361, 0.355, 0.472, 0.0177, 0.486, 0.0, 11.8, 2.18),
    ),
}


def mean(rows, key):
    return sum(row[key] for row in rows) / len(rows)


def diagnose(rows):
    first, *later = rows
    last = later[-1]
    if mean(later, "groups_without_signal") > 0.4:
        return "no signal"
    if last["bleu"] < first["bleu"] - 0.05:
        return "reward hacked" if last["eval_reward"] > first["eval_reward"] else "rate too high"
    if last["bleu"] > first["bleu"] + 0.05:
        return "healthy"
    return "KL too strong" if mean(later, "grad_norm") > 1.2 else "rate too low"


def trusts_its_own_reward(rows):
    return "healthy" if rows[-1]["eval_reward"] > rows[0]["eval_reward"] + 0.1 else diagnose(rows)


def reads_the_yardstick_alone(rows):
    return "rate too high" if rows[-1]["bleu"] < rows[0]["bleu"] - 0.05 else diagnose(rows)


def every_high_kl_is_the_rate(rows):
    return "rate too high" if max(row["kl_k3"] for row in rows[1:]) > 1 else diagnose(rows)


def waits_for_a_gradient_of_zero(rows):
    found = diagnose(rows)
    if found != "no signal":
        return found
    return "KL too strong" if mean(rows[1:], "grad_norm") > 1.2 else "rate too low"


def compares_steps(rows):
    found = diagnose(rows)
    rises = rows[-1]["reward_mean"] > rows[1]["reward_mean"] + 0.1
    return "healthy" if found in ("rate too low", "KL too strong") and rises else found


def flat_is_slow(rows):
    found = diagnose(rows)
    return "rate too low" if found == "KL too strong" else found


def recorded_case(name, why):
    rows = [dict(zip(KEYS, row, strict=False)) for row in RECORDED[name]]  # row 0 has fewer
    return Case({"rows": rows}, why)


DIAGNOSE = Exercise(
    diagnose,
    difficulty="hard",
    minutes=20,
    cases=(
        recorded_case("healthy", "the yardstick rises"),
        recorded_case("rate too high", "the yardstick collapses, and so does the reward"),
        recorded_case("reward hacked", "one of the two rewards rises, the other does not"),
        recorded_case("no signal", "look at how many groups have something to compare"),
        recorded_case("rate too low", "the yardstick is flat, and hardly anything moves"),
        recorded_case("KL too strong", "the yardstick is flat, and something pulls"),
    ),
    hints=(
        "Begin with the one that needs a single number, the share of groups without signal. Then ask whether bleu "
        "rose, fell or stayed, from row 0 to the last: a change below .05 is noise here.",
        "If bleu fell: did the run's own eval_reward fall with it, or rise? If bleu stayed: a KL that pulls back makes "
        "the gradient long. Average grad_norm over the rows after row 0.",
        "no signal: mean share above .4. Fell: rate too high, or reward hacked if eval_reward rose. Rose: healthy. "
        "Flat: KL too strong if the mean grad_norm is above 1.2, else rate too low.",
    ),
    mistakes=(
        Mistake(
            trusts_its_own_reward,
            "a rising eval_reward is taken for health, but it is what the run is paid for. Judge by bleu",
        ),
        Mistake(
            reads_the_yardstick_alone,
            "every fall of bleu is blamed on the rate; here the run's own eval_reward rises while bleu falls",
        ),
        Mistake(
            every_high_kl_is_the_rate,
            "a high KL is blamed on the rate; at temperature .05 small changes are large in log-probs. Look at the "
            "groups without signal first",
        ),
        Mistake(
            waits_for_a_gradient_of_zero,
            "this waits for a gradient of 0; a few groups still have a signal, and the KL has a gradient of its own. "
            "Use the share of groups without signal",
        ),
        Mistake(
            compares_steps,
            "reward_mean is compared between steps, whose prompts differ: a flat run can seem to rise. Use bleu or "
            "eval_reward, which are of the same prompts each time",
        ),
        Mistake(
            flat_is_slow,
            "every flat run is taken for a slow one; a gradient several times longer than the healthy one says that "
            "something pulls back",
        ),
    ),
)

EXERCISES = (RATE_FACTOR, ADAM_STEP, DIAGNOSE)
