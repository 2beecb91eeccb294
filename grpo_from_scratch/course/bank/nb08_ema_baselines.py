"""Exercises of 08_ema_baselines: mend a memory, how late it is, and the α that is right."""

import math

import torch

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

# ---------------------------------------------------------------- memory_advantages


def memory_advantages(rewards, alpha):
    baseline, result = rewards[0].mean(), []
    for batch in rewards:
        result.append(batch - baseline)
        baseline = alpha * baseline + (1 - alpha) * batch.mean()
    return torch.stack(result)


def as_it_was(rewards, alpha):
    return faulty(rewards, alpha, start=0.0, use_first=False, each_reply=True)


def update_then_use(rewards, alpha):
    return faulty(rewards, alpha, start=rewards[0].mean(), use_first=False, each_reply=False)


def from_zero(rewards, alpha):
    return faulty(rewards, alpha, start=0.0, use_first=True, each_reply=False)


def once_for_each_reply(rewards, alpha):
    return faulty(rewards, alpha, start=rewards[0].mean(), use_first=True, each_reply=True)


def only_the_start_mended(rewards, alpha):
    return faulty(rewards, alpha, start=rewards[0].mean(), use_first=False, each_reply=True)


def only_the_order_mended(rewards, alpha):
    return faulty(rewards, alpha, start=0.0, use_first=True, each_reply=True)


def only_the_count_mended(rewards, alpha):
    return faulty(rewards, alpha, start=0.0, use_first=False, each_reply=False)


def each_reply_in_turn(rewards, alpha):
    baseline, result = rewards[0].mean(), torch.zeros_like(rewards)
    for index, reward in enumerate(rewards.flatten()):
        result.view(-1)[index] = reward - baseline
        baseline = alpha * baseline + (1 - alpha) * reward
    return result


def alpha_on_the_new(rewards, alpha):
    return memory_advantages(rewards, 1 - alpha)


def starts_at_the_first_reply(rewards, alpha):
    return faulty(rewards, alpha, start=rewards[0, 0], use_first=True, each_reply=False)


def starts_at_the_mean_of_all(rewards, alpha):
    return faulty(rewards, alpha, start=rewards.mean(), use_first=True, each_reply=False)


def divided_instead(rewards, alpha):
    def before(count):
        weights = alpha ** torch.arange(count - 1, -1, -1.0)
        return weights @ rewards[:count].mean(1) / weights.sum()

    return torch.stack([batch - (before(count) if count else batch.mean()) for count, batch in enumerate(rewards)])


def a_memory_for_each_column(rewards, alpha):
    baseline, result = rewards[0], []
    for batch in rewards:
        result.append(batch - baseline)
        baseline = alpha * baseline + (1 - alpha) * batch
    return torch.stack(result)


def without_the_first(rewards, alpha):
    return memory_advantages(rewards, alpha)[1:]


def the_baselines(rewards, alpha):
    return rewards - memory_advantages(rewards, alpha)


def faulty(rewards, alpha, *, start, use_first, each_reply):
    """The loop with any of its three faults."""
    baseline, result = start, []
    for batch in rewards:
        if use_first:
            result.append(batch - baseline)
        for new in batch if each_reply else [batch.mean()]:
            baseline = alpha * baseline + (1 - alpha) * new
        if not use_first:
            result.append(batch - baseline)
    return torch.stack(result)


MEMORY_ADVANTAGES = Exercise(
    memory_advantages,
    difficulty="easy",
    minutes=15,
    cases=(
        Case(
            {"rewards": torch.tensor([[1.0, 0.0], [1.0, 0.5], [2.0, 2.0]]), "alpha": 0.5},
            "three batches of two: the baselines are 0.5, 0.5 and 0.625",
        ),
        Case(
            {"rewards": torch.full((4, 3), 4.0), "alpha": 0.9},
            "every reward is 4, so no reply is better than another, not even in the first batch",
        ),
        Case(
            {"rewards": torch.tensor([[0.2, 0.9, 0.4], [0.1, 0.0, 0.8]]), "alpha": 0.0},
            "with alpha = 0 only the batch before is remembered",
        ),
        Case({"rewards": torch.tensor([[2.0], [5.0], [3.0]]), "alpha": 0.8}, "one reply a batch: 0, 3 and 0.4"),
    ),
    hints=(
        "Three lines are at fault: where the baseline starts, when it is updated, and how often in a batch.",
        "baseline = rewards[0].mean() to begin with. In the loop, first result.append(batch - baseline).",
        "After the append, once for the batch: baseline = alpha * baseline + (1 - alpha) * batch.mean()",
    ),
    mistakes=(
        Mistake(as_it_was, "this is still the loop as it was: it starts at 0, updates first, and for each reply"),
        Mistake(
            update_then_use,
            "the baseline contains the batch that it judges: append batch - baseline first, update afterwards",
        ),
        Mistake(from_zero, "the memory starts at 0, so the first advantages are far too high: start at a mean"),
        Mistake(
            once_for_each_reply,
            "each reply is an update of its own, so the order of the rows counts and the old value is left with "
            "alpha ** n; take batch.mean() in, once",
        ),
        Mistake(
            only_the_start_mended, "the start is right; it is still updated before it is used, and once for each reply"
        ),
        Mistake(only_the_order_mended, "used first, as it should be; it still starts at 0 and updates for each reply"),
        Mistake(only_the_count_mended, "the batch counts once, as it should; it still starts at 0 and updates first"),
        Mistake(
            each_reply_in_turn,
            "used first, but reply by reply: then a reply's advantage depends on its place in the batch. One baseline "
            "for the whole batch",
        ),
        Mistake(alpha_on_the_new, "alpha is the weight of the old value, 1 - alpha that of the new"),
        Mistake(starts_at_the_first_reply, "it starts at the first reply's reward; take the first batch's mean"),
        Mistake(starts_at_the_mean_of_all, "the mean of all batches is not known yet when the first one is judged"),
        Mistake(divided_instead, "the other cure: a start at 0, divided; here start at the first batch's mean"),
        Mistake(a_memory_for_each_column, "there is a memory for each column; all rows share one: batch.mean()"),
        Mistake(without_the_first, "the first batch is missing: it is compared with its own mean"),
        Mistake(the_baselines, "these are the baselines; return what is left of the rewards"),
    ),
)

# ---------------------------------------------------------------- batches_to_catch_up


def batches_to_catch_up(alpha, within):
    missing, batches = 1.0, 0
    while missing > within:
        missing *= alpha
        batches += 1
    return batches


def mean_age(alpha, within):
    return round(1 / (1 - alpha))


def how_much_arrived(alpha, within):
    return batches_to_catch_up(alpha, 1 - within)


def rounded_down(alpha, within):
    return max(batches_to_catch_up(alpha, within) - 1, 0)


def not_rounded(alpha, within):
    return math.log(within) / math.log(alpha)


def one_too_many(alpha, within):
    return batches_to_catch_up(alpha, within) + 1


def weight_of_the_newest(alpha, within):
    return batches_to_catch_up(1 - alpha, within)


def in_a_straight_line(alpha, within):
    return math.ceil((1 - within) / (1 - alpha) - 1e-9)


def at_least_one(alpha, within):
    return max(batches_to_catch_up(alpha, within), 1)


def logarithm_of_zero(alpha, within):
    return math.ceil(math.log(within) / math.log(alpha))


BATCHES_TO_CATCH_UP = Exercise(
    batches_to_catch_up,
    difficulty="easy",
    minutes=10,
    cases=(
        Case({"alpha": 0.9, "within": 0.3}, "after 11 batches 31 % of the jump are missing, after 12 only 28 %"),
        Case({"alpha": 0.5, "within": 0.3}, "a half is missing after one batch, a quarter after two"),
        Case({"alpha": 0.99, "within": 0.5}, "half of the jump, with a long memory"),
        Case({"alpha": 0.95, "within": 1.0}, "all of the jump may be missing: no batch is needed"),
        Case({"alpha": 0.0, "within": 0.1}, "a memory of one batch has caught up after one"),
    ),
    hints=(
        "After one batch the share alpha of the jump is missing, after two alpha squared. When is it small enough?",
        "The smallest k with alpha ** k <= within, 0 among them. A loop that multiplies will do.",
        "missing, k = 1.0, 0; then, while missing > within: missing, k = missing * alpha, k + 1",
    ),
    mistakes=(
        Mistake(mean_age, "this is the mean age 1/(1 - alpha), by which time about 36 % of the jump are still missing"),
        Mistake(how_much_arrived, "within is the share that may still be missing, not the share that has arrived"),
        Mistake(rounded_down, "one batch too early: after it, more than the given share is still missing"),
        Mistake(not_rounded, "batches come whole: round up"),
        Mistake(one_too_many, "one batch too many. Count the new batches taken in: none, and all of it is missing"),
        Mistake(weight_of_the_newest, "alpha and 1 - alpha are exchanged: alpha is the share that stays missing"),
        Mistake(
            in_a_straight_line,
            "each batch brings the share 1 - alpha of what is still missing, not of the whole jump: it slows down",
        ),
        Mistake(at_least_one, "when all of the jump may be missing, not even one batch is needed"),
        Mistake(logarithm_of_zero, "log(0) is no number: alpha = 0 needs a case of its own"),
    ),
)

# ---------------------------------------------------------------- best_alpha


def best_alpha(alphas, noise, drift, replies):
    lag, variance = drift / (1 - alphas), (1 - alphas) / (1 + alphas) * noise**2 / replies
    return alphas[(lag**2 + variance).argmin()]


def without_batch_size(alphas, noise, drift, replies):
    return best_alpha(alphas, noise, drift, 1)


def lag_not_squared(alphas, noise, drift, replies):
    error = drift / (1 - alphas) + (1 - alphas) / (1 + alphas) * noise**2 / replies
    return alphas[error.argmin()]


def lag_and_deviation(alphas, noise, drift, replies):
    error = drift / (1 - alphas) + ((1 - alphas) / (1 + alphas) * noise**2 / replies).sqrt()
    return alphas[error.argmin()]


def noise_not_squared(alphas, noise, drift, replies):
    error = (drift / (1 - alphas)) ** 2 + (1 - alphas) / (1 + alphas) * noise / replies
    return alphas[error.argmin()]


def lag_after_the_update(alphas, noise, drift, replies):
    return best_alpha(alphas, noise, drift * alphas, replies)


def noise_alone(alphas, noise, drift, replies):
    return best_alpha(alphas, noise, 0.0, replies)


def lag_alone(alphas, noise, drift, replies):
    return alphas[(drift / (1 - alphas)).argmin()]


def its_place(alphas, noise, drift, replies):
    return (alphas == best_alpha(alphas, noise, drift, replies)).nonzero().squeeze()


def its_error(alphas, noise, drift, replies):
    lag, variance = drift / (1 - alphas), (1 - alphas) / (1 + alphas) * noise**2 / replies
    return (lag**2 + variance).min()


def weights_not_squared(alphas, noise, drift, replies):
    error = (drift / (1 - alphas)) ** 2 + (1 - alphas) * noise**2 / replies
    return alphas[error.argmin()]


def rule_of_thumb(alphas, noise, drift, replies):
    target = 1 - (4 * replies * drift**2 / noise**2) ** (1 / 3)
    return alphas[(alphas - target).abs().argmin()]


FINE = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999]
FINE = torch.tensor(FINE, dtype=torch.float64)

BEST_ALPHA = Exercise(
    best_alpha,
    difficulty="medium",
    minutes=15,
    cases=(
        Case(
            {"alphas": FINE, "noise": 0.3, "drift": 0.002, "replies": 8},
            "sixteen candidates; the least error is .0010",
        ),
        Case({"alphas": FINE, "noise": 0.1, "drift": 0.05, "replies": 16}, "fast drift, so the shortest memory"),
        Case({"alphas": FINE, "noise": 0.3, "drift": 0.005, "replies": 64}, "less drift than that, and batches of 64"),
        Case({"alphas": FINE, "noise": 0.3, "drift": 0.0, "replies": 8}, "no drift: the longest memory"),
        Case({"alphas": FINE, "noise": 0.0, "drift": 0.005, "replies": 8}, "no noise: the shortest memory"),
        Case({"alphas": FINE, "noise": 1.0, "drift": 0.002, "replies": 1}, "very noisy, hardly any drift"),
    ),
    hints=(
        "Compute the mean squared error of every candidate at once: lag squared plus variance, both from the formula.",
        "lag = drift / (1 - alphas); variance = (1 - alphas) / (1 + alphas) * noise**2 / replies. Which is least?",
        "alphas[(lag**2 + variance).argmin()]",
    ),
    mistakes=(
        Mistake(
            without_batch_size, "the batch mean's variance is noise squared over replies: the batch size is missing"
        ),
        Mistake(lag_not_squared, "lag and variance have different units; square the lag"),
        Mistake(
            lag_and_deviation,
            "lag plus standard deviation: it is their squares that add up (a bias and a spread are at right angles)",
        ),
        Mistake(noise_not_squared, "noise is a standard deviation; a variance is its square"),
        Mistake(weights_not_squared, "the variance of the memory is (1 - alphas) / (1 + alphas) that of a batch mean"),
        Mistake(
            lag_after_the_update,
            "this is the lag of a memory already updated; before the update it is drift / (1 - alphas)",
        ),
        Mistake(noise_alone, "the lag is missing, so the longest memory always wins"),
        Mistake(lag_alone, "the variance is missing, so the shortest memory always wins"),
        Mistake(its_place, "this is the index of the best candidate; return the alpha that stands there"),
        Mistake(its_error, "this is the least error; return the alpha that has it"),
        Mistake(
            rule_of_thumb,
            "the cube-root rule holds for alphas near 1 only; compare the exact errors of the candidates",
        ),
    ),
)

EXERCISES = (MEMORY_ADVANTAGES, BATCHES_TO_CATCH_UP, BEST_ALPHA)
