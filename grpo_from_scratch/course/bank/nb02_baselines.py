"""Exercises of 02_baselines: the best constant, an average over every draw, the mean of the others."""

import itertools

import torch
from torch import Tensor

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

# ---------------------------------------------------------------- best_constant


def best_constant(probabilities, rewards):
    scores = torch.eye(len(rewards), dtype=rewards.dtype) - probabilities
    weights = probabilities * scores.square().sum(1)
    return (weights * rewards).sum() / weights.sum()


def expected_reward(probabilities, rewards):
    return (probabilities * rewards).sum()


def middle_of_the_table(probabilities, rewards):
    return rewards.mean()


def lengths_not_squared(probabilities, rewards):
    scores = torch.eye(len(rewards), dtype=rewards.dtype) - probabilities
    weights = probabilities * scores.norm(dim=1)
    return (weights * rewards).sum() / weights.sum()


def not_normalised(probabilities, rewards):
    scores = torch.eye(len(rewards), dtype=rewards.dtype) - probabilities
    return (probabilities * scores.square().sum(1) * rewards).sum()


def without_probabilities(probabilities, rewards):
    weights = (torch.eye(len(rewards), dtype=rewards.dtype) - probabilities).square().sum(1)
    return (weights * rewards).sum() / weights.sum()


def for_the_notebooks_policy(probabilities, rewards):
    return best_constant(
        torch.tensor([0.1, 0.3, 0.1, 0.2, 0.2, 0.1], dtype=torch.float64),
        torch.tensor([1.0, 0.2, 0.6, 0.8, 0.1, 0.0], dtype=torch.float64),
    )


BEST_CONSTANT = Exercise(
    best_constant,
    difficulty="medium",
    minutes=15,
    cases=(
        Case(
            {
                "probabilities": torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64),
                "rewards": torch.tensor([3.0, -1.0, 2.0], dtype=torch.float64),
            },
            "three replies",
        ),
        Case(
            {
                "probabilities": torch.tensor([0.9, 0.1], dtype=torch.float64),
                "rewards": torch.tensor([1.0, 0.0], dtype=torch.float64),
            },
            "of two replies, the rare one has a score nine times as long (.90√2 against .10√2)",
        ),
        Case(
            {
                "probabilities": torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64),
                "rewards": torch.tensor([4.0, 4.0, 4.0], dtype=torch.float64),
            },
            "all rewards are 4: subtract 4 and no noise is left",
        ),
    ),
    hints=(
        "The mean of the estimate does not depend on b, so only E[(Q - b)² |score|²] matters. It is a parabola in b.",
        "Its slope is -2 E[(Q - b) |score|²]. Where is that zero?",
        "b = E[Q |score|²] / E[|score|²]. With scores = torch.eye(K) - probabilities, |score|² is "
        "scores.square().sum(1), and E is a sum weighted by probabilities.",
    ),
    mistakes=(
        Mistake(
            expected_reward, "this is J, which would be best if all scores were equally long; long ones weigh more"
        ),
        Mistake(middle_of_the_table, "this is the plain mean of the table; nothing says how often a reply is drawn"),
        Mistake(lengths_not_squared, "the weight is the length of the score squared: variance is about squares"),
        Mistake(not_normalised, "divide by the sum of the weights, or a constant reward does not give that constant"),
        Mistake(
            for_the_notebooks_policy,
            "this is right for the notebook's six replies; compute it from the arguments, probabilities and rewards",
        ),
        Mistake(without_probabilities, "the weights leave out how often each reply is drawn"),
    ),
    rtol=1e-6,
)

# ---------------------------------------------------------------- expected_estimate


def expected_estimate(probabilities, rewards, baseline, count):
    scores = torch.eye(len(rewards), dtype=rewards.dtype) - probabilities
    total = torch.zeros_like(rewards)
    for draw in itertools.product(range(len(rewards)), repeat=count):
        actions = list(draw)
        advantages = rewards[actions] - baseline(rewards[actions])
        estimate = (advantages[:, None] * scores[actions]).mean(0)
        total += probabilities[actions].prod() * estimate
    return total


def every_draw_alike(probabilities, rewards, baseline, count):
    uniform = torch.full_like(probabilities, 1 / len(rewards))
    return tilted(probabilities, rewards, baseline, itertools.product(range(len(rewards)), repeat=count), uniform)


def weighs_by_the_first(probabilities, rewards, baseline, count):
    total = expected_estimate(probabilities, rewards, baseline, count) * 0
    scores = torch.eye(len(rewards), dtype=rewards.dtype) - probabilities
    for draw in itertools.product(range(len(rewards)), repeat=count):
        actions = list(draw)
        advantages = rewards[actions] - baseline(rewards[actions])
        total += probabilities[draw[0]] * (advantages[:, None] * scores[actions]).mean(0)
    return total


def without_order(probabilities, rewards, baseline, count):
    draws = itertools.combinations_with_replacement(range(len(rewards)), count)
    return tilted(probabilities, rewards, baseline, draws, probabilities)


def without_repeats(probabilities, rewards, baseline, count):
    draws = itertools.permutations(range(len(rewards)), count)
    return tilted(probabilities, rewards, baseline, draws, probabilities)


def summed_over_the_draw(probabilities, rewards, baseline, count):
    return count * expected_estimate(probabilities, rewards, baseline, count)


def without_baseline(probabilities, rewards, baseline, count):
    return expected_estimate(probabilities, rewards, torch.zeros_like, count)


def tilted(probabilities, rewards, baseline, draws, weights):
    """Σ over these draws of the product of their ``weights`` and of their estimate."""
    scores = torch.eye(len(rewards), dtype=rewards.dtype) - probabilities
    total = torch.zeros_like(rewards)
    for draw in draws:
        actions = list(draw)
        advantages = rewards[actions] - baseline(rewards[actions])
        total += weights[actions].prod() * (advantages[:, None] * scores[actions]).mean(0)
    return total


def nothing(drawn: Tensor) -> Tensor:
    """baseline(drawn) = 0 for each drawn reward"""
    return torch.zeros_like(drawn)


def seven(drawn: Tensor) -> Tensor:
    """baseline(drawn) = 7 for each drawn reward"""
    return torch.full_like(drawn, 7.0)


def their_mean(drawn: Tensor) -> Tensor:
    """baseline(drawn) = the mean of the drawn rewards, for each of them"""
    return drawn.mean().expand(len(drawn))


EXPECTED_ESTIMATE = Exercise(
    expected_estimate,
    difficulty="medium",
    minutes=20,
    cases=(
        Case(
            {
                "probabilities": torch.tensor([0.25, 0.75], dtype=torch.float64),
                "rewards": torch.tensor([1.0, 0.0], dtype=torch.float64),
                "baseline": nothing,
                "count": 1,
            },
            "two replies, one is drawn, no baseline: .25 · 1 · (1 - .25) for the first logit",
        ),
        Case(
            {
                "probabilities": torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64),
                "rewards": torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64),
                "baseline": seven,
                "count": 2,
            },
            "three replies, two are drawn: nine draws, (0, 1) and (1, 0) among them",
        ),
        Case(
            {
                "probabilities": torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64),
                "rewards": torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64),
                "baseline": their_mean,
                "count": 3,
            },
            "a baseline that depends on what was drawn",
        ),
    ),
    hints=(
        "itertools.product(range(K), repeat=count) walks through every draw. Inside the loop nothing is random.",
        "A draw's probability is the product of its replies' probabilities. Its estimate is the mean over its replies "
        "of (reward - baseline) times that reply's score, and the scores are torch.eye(K) - probabilities.",
        "for draw in itertools.product(...): actions = list(draw); drawn = rewards[actions]; "
        "total += probabilities[actions].prod() * ((drawn - baseline(drawn))[:, None] * scores[actions]).mean(0)",
    ),
    mistakes=(
        Mistake(every_draw_alike, "every draw counts the same here; weigh each by how likely the policy draws it"),
        Mistake(weighs_by_the_first, "a draw's probability is the product over all its replies, not that of the first"),
        Mistake(without_order, "(0, 1) and (1, 0) are two draws, and both happen: itertools.product has both"),
        Mistake(without_repeats, "the same reply can be drawn twice: itertools.product has (0, 0) too"),
        Mistake(summed_over_the_draw, "an estimate is the mean over its replies; this is their sum"),
        Mistake(
            without_baseline,
            "no baseline is subtracted, or it was given the whole table of rewards; it may only see what was drawn",
        ),
    ),
    rtol=1e-6,
    atol=1e-9,
)

# ---------------------------------------------------------------- others_mean


def others_mean(rewards):
    if len(rewards) == 1:
        return rewards
    return (rewards.sum() - rewards) / (len(rewards) - 1)


def everyones_mean(rewards):
    return rewards.mean().expand(len(rewards)).clone()


def divided_by_all(rewards):
    return (rewards.sum() - rewards) / len(rewards)


def the_advantage(rewards):
    return rewards - others_mean(rewards)


def alone_is_nan(rewards):
    return (rewards.sum() - rewards) / (len(rewards) - 1)


def alone_is_zero(rewards):
    return (rewards.sum() - rewards) / max(len(rewards) - 1, 1)


OTHERS_MEAN = Exercise(
    others_mean,
    difficulty="easy",
    minutes=10,
    cases=(
        Case({"rewards": torch.tensor([1.0, 0.0, 0.0, 1.0])}, "the others of a 1 earned 1/3, the others of a 0 2/3"),
        Case({"rewards": torch.tensor([3.0, 8.0])}, "two replies: each is compared with the other"),
        Case({"rewards": torch.tensor([5.0])}, "one reply, no others: its own reward, so that the advantage is 0"),
    ),
    hints=(
        "The sum of the others is the sum of all, minus your own reward.",
        "How many others are there? And what if there are none?",
        "(rewards.sum() - rewards) / (len(rewards) - 1), and rewards itself when there is only one.",
    ),
    mistakes=(
        Mistake(everyones_mean, "this mean contains the reply's own reward, so it is the same for all of them"),
        Mistake(divided_by_all, "there is one reply fewer among the others: divide by N - 1"),
        Mistake(the_advantage, "this is the advantage; return what is subtracted from the rewards"),
        Mistake(alone_is_nan, "a reply that is alone has no others, and 0 / 0 is NaN"),
        Mistake(alone_is_zero, "with nobody to compare with, this leaves the whole reward as the advantage"),
    ),
)

EXERCISES = (BEST_CONSTANT, EXPECTED_ESTIMATE, OTHERS_MEAN)
