"""Exercises of 01_policy_gradient: three ways to the same gradient."""

import torch
from torch import Tensor

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

# ---------------------------------------------------------------- finite_difference


def finite_difference(f, x, step):
    slopes = torch.zeros_like(x)
    for k in range(len(x)):
        nudge = torch.zeros_like(x)
        nudge[k] = step
        slopes[k] = (f(x + nudge) - f(x - nudge)) / (2 * step)
    return slopes


def one_sided(f, x, step):
    return torch.stack([(f(x + step * row) - f(x)) / step for row in torch.eye(len(x), dtype=x.dtype)])


def not_halved(f, x, step):
    return 2 * finite_difference(f, x, step)


def not_divided(f, x, step):
    return 2 * step * finite_difference(f, x, step)


def all_at_once(f, x, step):
    return ((f(x + step) - f(x - step)) / (2 * step)).expand(len(x)).clone()


def nudges_in_place(f, x, step):
    slopes = torch.zeros_like(x)
    for k in range(len(x)):
        x[k] += step
        above = f(x)
        x[k] -= step
        slopes[k] = (above - f(x - step * torch.eye(len(x), dtype=x.dtype)[k])) / (2 * step)
        x[k] += step
    return slopes


def parabola(x: Tensor) -> Tensor:
    """the function x[0]**2 + 3 * x[1]"""
    return x[0] ** 2 + 3 * x[1]


def product(x: Tensor) -> Tensor:
    """the function x[0] * x[1] * x[2]"""
    return x.prod()


def best_probability(x: Tensor) -> Tensor:
    """the function softmax(x)[0]"""
    return torch.softmax(x, 0)[0]


FINITE_DIFFERENCE = Exercise(
    finite_difference,
    difficulty="easy",
    minutes=10,
    cases=(
        Case(
            {"f": parabola, "x": torch.tensor([3.0, -1.0], dtype=torch.float64), "step": 0.5},
            "the slopes are 6 and 3, and differences on both sides are exact on a parabola, whatever the step",
        ),
        Case(
            {"f": product, "x": torch.tensor([2.0, 3.0, 5.0], dtype=torch.float64), "step": 0.1},
            "each slope is the product of the other two",
        ),
        Case(
            {"f": best_probability, "x": torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64), "step": 1e-4},
            "a softmax, as in this notebook",
        ),
    ),
    hints=(
        "One number of x at a time: make a copy of x in which only x[k] is moved.",
        "Ask f on both sides, at x[k] + step and at x[k] - step. How far apart are those two places?",
        "slopes[k] = (f(x + nudge) - f(x - nudge)) / (2 * step), where nudge is zero except nudge[k] = step.",
    ),
    mistakes=(
        Mistake(
            one_sided, "it looks on one side only, which is off by about step; both sides are off by about step squared"
        ),
        Mistake(not_halved, "the two places are 2 * step apart, not step"),
        Mistake(not_divided, "the difference of f still has to be divided by the distance, 2 * step"),
        Mistake(all_at_once, "all numbers of x moved together; a slope needs x[k] moved alone"),
        Mistake(nudges_in_place, "x[k] += step moves x itself, and it is not put back: nudge a copy"),
    ),
    rtol=1e-6,
)

# ---------------------------------------------------------------- score_function


def score_function(logits, actions):
    taken = torch.nn.functional.one_hot(actions, len(logits)).to(logits.dtype)
    return taken - torch.softmax(logits, 0)


def pushes_away(logits, actions):
    return -score_function(logits, actions)


def only_the_taken(logits, actions):
    return torch.nn.functional.one_hot(actions, len(logits)).to(logits.dtype)


def rows_for_places(logits, actions):
    scores = -torch.softmax(logits, 0).repeat(len(actions), 1)
    scores[actions] += 1
    return scores


def slope_of_the_probability(logits, actions):
    return torch.softmax(logits, 0)[actions, None] * score_function(logits, actions)


def logits_for_probabilities(logits, actions):
    return torch.nn.functional.one_hot(actions, len(logits)).to(logits.dtype) - logits


SCORE_FUNCTION = Exercise(
    score_function,
    difficulty="medium",
    minutes=15,
    cases=(
        Case(
            {
                "logits": torch.tensor([0.1, 0.3, 0.6], dtype=torch.float64).log(),
                "actions": torch.tensor([0, 2, 2, 1]),
            },
            "one row for each action; the probabilities are .1, .3 and .6",
        ),
        Case(
            {"logits": torch.zeros(4, dtype=torch.float64), "actions": torch.tensor([2])},
            "one action under a uniform policy: three quarters for it, a quarter against each other",
        ),
        Case(
            {"logits": torch.tensor([5.0, 2.0, 2.0], dtype=torch.float64), "actions": torch.tensor([0, 1])},
            "a policy that is nearly sure: taking what it expected says little",
        ),
    ),
    hints=(
        "log π(a) = logits[a] - log Σ exp(logits). Differentiate the two terms by logits[k], one after the other.",
        "The first term gives 1 where k is the action taken and 0 elsewhere; the second gives the probability of k.",
        "torch.nn.functional.one_hot(actions, len(logits)) minus torch.softmax(logits, 0).",
    ),
    mistakes=(
        Mistake(pushes_away, "the sign is turned: the taken action's own logit should get a positive number"),
        Mistake(only_the_taken, "the log of the sum is missing: it takes π[k] away from every logit"),
        Mistake(
            rows_for_places, "scores[actions] picks whole rows; scores[torch.arange(N), actions] one place in each"
        ),
        Mistake(slope_of_the_probability, "this is the slope of π(a); the slope of log π(a) is that divided by π(a)"),
        Mistake(logits_for_probabilities, "you took the logits away; take the probabilities, softmax(logits)"),
    ),
    rtol=1e-6,
)

# ---------------------------------------------------------------- reinforce_loss


def reinforce_loss(logits, actions, rewards):
    return -(rewards * torch.log_softmax(logits, 0)[actions]).mean()


def climbs_down(logits, actions, rewards):
    return -reinforce_loss(logits, actions, rewards)


def summed(logits, actions, rewards):
    return reinforce_loss(logits, actions, rewards) * len(actions)


def without_log(logits, actions, rewards):
    return -(rewards * torch.softmax(logits, 0)[actions]).mean()


def raw_logits(logits, actions, rewards):
    return -(rewards * logits[actions]).mean()


def nothing_to_differentiate(logits, actions, rewards):
    return reinforce_loss(logits.detach(), actions, rewards)


def without_rewards(logits, actions, rewards):
    return -torch.log_softmax(logits, 0)[actions].mean()


REINFORCE_LOSS = Exercise(
    reinforce_loss,
    difficulty="medium",
    minutes=15,
    cases=(
        Case(
            {
                "logits": torch.tensor([0.2, 0.8], dtype=torch.float64).log(),
                "actions": torch.tensor([0]),
                "rewards": torch.tensor([1.0], dtype=torch.float64),
            },
            "one action with probability .2 and reward 1: the loss is -log .2",
        ),
        Case(
            {
                "logits": torch.tensor([0.5, -0.5, 1.0], dtype=torch.float64),
                "actions": torch.tensor([0, 2, 2, 1]),
                "rewards": torch.tensor([1.0, 0.0, 0.5, -2.0], dtype=torch.float64),
            },
            "four actions, one of them punished",
        ),
    ),
    hints=(
        "Minimising the loss should raise the log-probability of what was rewarded: mind the sign.",
        "torch.log_softmax(logits, 0)[actions] has the log-probability of each action that was taken.",
        "-(rewards * log-probabilities).mean()",
    ),
    mistakes=(
        Mistake(climbs_down, "the sign is turned: an optimizer minimises, so this makes rewarded actions rarer"),
        Mistake(summed, "it is the sum; the gradient of J is a mean, and a sum grows with the number of samples"),
        Mistake(without_log, "it uses π(a), not log π(a); π(a) is already in how often a is drawn, so it counts twice"),
        Mistake(raw_logits, "logits are not log-probabilities: log_softmax takes the log of the sum away"),
        Mistake(nothing_to_differentiate, "no gradient reaches the logits: were they detached, or turned into numbers"),
        Mistake(without_rewards, "the rewards are not used, so everything that was drawn is made likelier"),
    ),
    gradients=("logits",),
    rtol=1e-6,
)

EXERCISES = (FINITE_DIFFERENCE, SCORE_FUNCTION, REINFORCE_LOSS)
