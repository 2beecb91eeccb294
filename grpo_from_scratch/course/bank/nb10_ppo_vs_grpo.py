"""Exercises of 10_ppo_vs_grpo: GAE with every kind of end, a critic judged, an interval turned into a verdict."""

import math

import torch

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

# ---------------------------------------------------------------- gae_of_reply


def gae_of_reply(rewards, values, next_value, end, lam):
    following = next_value if end == "goes on" else 0.0
    running, advantages = 0.0, torch.zeros_like(values)
    for t in reversed(range(len(values))):
        error = rewards[t] + following - values[t]
        running = error + lam * running
        advantages[t] = running
        following = values[t]
    return advantages


def always_bootstraps(rewards, values, next_value, end, lam):
    return gae_of_reply(rewards, values, next_value, "goes on", lam)


def bootstraps_when_cut(rewards, values, next_value, end, lam):
    return gae_of_reply(rewards, values, next_value, "eos" if end == "eos" else "goes on", lam)


def never_bootstraps(rewards, values, next_value, end, lam):
    return gae_of_reply(rewards, values, next_value, "eos", lam)


def returns_for_advantages(rewards, values, next_value, end, lam):
    return gae_of_reply(rewards, values, next_value, end, lam) + values


def one_step_errors(rewards, values, next_value, end, lam):
    return gae_of_reply(rewards, values, next_value, end, 0.0)


def to_the_end(rewards, values, next_value, end, lam):
    return gae_of_reply(rewards, values, next_value, end, 1.0)


def errors_of(rewards, values, next_value, end):
    last = next_value if end == "goes on" else 0.0
    return rewards + torch.cat([values[1:], values.new_tensor([last])]) - values


def summed_from_the_front(rewards, values, next_value, end, lam):
    running, advantages = 0.0, []
    for error in errors_of(rewards, values, next_value, end):
        running = error + lam * running
        advantages.append(running)
    return torch.stack(advantages)


def lambda_on_the_value(rewards, values, next_value, end, lam):
    running, following, advantages = 0.0, next_value if end == "goes on" else 0.0, []
    for t in reversed(range(len(values))):
        running = rewards[t] + lam * following - values[t] + lam * running
        advantages.insert(0, running)
        following = values[t]
    return torch.stack(advantages)


def without_the_value(rewards, values, next_value, end, lam):
    return gae_of_reply(rewards, torch.zeros_like(values), next_value, end, lam)


GAE_OF_REPLY = Exercise(
    gae_of_reply,
    difficulty="medium",
    minutes=20,
    cases=(
        Case(
            {
                "rewards": torch.tensor([0.0, 0.0, 0.9]),
                "values": torch.tensor([0.4, 0.6, 0.5]),
                "next_value": 0.3,
                "end": "eos",
                "lam": 0.5,
            },
            "a reply that ended itself; the critic's errors are +.2, −.1 and +.4",
        ),
        Case(
            {
                "rewards": torch.tensor([0.0, -0.1, 0.0, 0.5]),
                "values": torch.tensor([0.5, 0.5, 0.4, 0.4]),
                "next_value": 0.7,
                "end": "length",
                "lam": 0.9,
            },
            "cut at the limit, and its score of .5 is paid on the last token: nothing follows",
        ),
        Case(
            {
                "rewards": torch.tensor([0.0, 0.0, -0.2]),
                "values": torch.tensor([0.2, 0.3, 0.5]),
                "next_value": 0.8,
                "end": "goes on",
                "lam": 0.95,
            },
            "no score yet: the next batch goes on with this reply, and the critic says what it is worth then",
        ),
        Case(
            {
                "rewards": torch.tensor([1.0]),
                "values": torch.tensor([0.25]),
                "next_value": 0.5,
                "end": "eos",
                "lam": 1.0,
            },
            "a single token",
        ),
    ),
    hints=(
        "Go from the last token to the first. Keep two numbers: the value of what follows, and the advantage of what "
        "follows.",
        "error = rewards[t] + following - values[t], then running = error + lam * running, and following becomes "
        "values[t]. What is `following` at the last token, for each of the three ends?",
        "following = next_value if end == 'goes on' else 0.0. A reply cut at its limit has had its score: it is over.",
    ),
    mistakes=(
        Mistake(
            always_bootstraps,
            "the value after the last token is added whatever the end: once a reply is over, nothing follows it",
        ),
        Mistake(
            bootstraps_when_cut,
            "a reply cut at the limit got its score on the last token; adding the value of going on pays it twice",
        ),
        Mistake(never_bootstraps, "a reply that goes on is not worth 0 after its last token: there next_value follows"),
        Mistake(returns_for_advantages, "these are the returns, advantage + value: what the critic learns from"),
        Mistake(one_step_errors, "these are the one-step errors: lam times the next advantage is missing"),
        Mistake(to_the_end, "lam is not used: this is the advantage for lam = 1"),
        Mistake(
            summed_from_the_front,
            "the errors are collected from the front: a token would be judged by those before it. Start at the end",
        ),
        Mistake(
            lambda_on_the_value,
            "lam multiplies the next value too; it belongs only to the next advantage (the discount here is 1)",
        ),
        Mistake(without_the_value, "the critic's values are not used at all"),
    ),
)

# ---------------------------------------------------------------- judge_critic


def judge_critic(values, scores):
    scored = ~scores.isnan()
    known, scores = values[scored, 0].double(), scores[scored].double()
    if len(scores) < 2 or scores.min() == scores.max():
        return math.nan, "cannot tell"
    ev = float(1 - (scores - known).var() / scores.var())
    return ev, "learned" if ev >= 0.2 else "did not learn"


def judged(ev):
    return ev, "learned" if ev >= 0.2 else "did not learn"


def every_token(values, scores):
    scored = ~scores.isnan()
    spread = scores[scored, None].expand(-1, values.shape[1]).double().flatten()
    if len(spread) < 2 or spread.min() == spread.max():
        return math.nan, "cannot tell"
    return judged(float(1 - (spread - values[scored].double().flatten()).var() / spread.var()))


def squared_correlation(values, scores):
    ev, word = judge_critic(values, scores)
    if math.isnan(ev):
        return ev, word
    scored = ~scores.isnan()
    return judged(float(torch.corrcoef(torch.stack([values[scored, 0], scores[scored]]).double())[0, 1] ** 2))


def mean_squared_error(values, scores):
    ev, word = judge_critic(values, scores)
    if math.isnan(ev):
        return ev, word
    scored = ~scores.isnan()
    error = (scores[scored] - values[scored, 0]).double().square().mean()
    return judged(float(1 - error / scores[scored].double().var()))


def what_is_left(values, scores):
    ev, word = judge_critic(values, scores)
    return (ev, word) if math.isnan(ev) else judged(1 - ev)


def missing_as_zero(values, scores):
    return judge_critic(values, scores.nan_to_num(0.0))


def better_than_nothing(values, scores):
    ev, word = judge_critic(values, scores)
    return (ev, word) if math.isnan(ev) else (ev, "learned" if ev > 0 else "did not learn")


JUDGE_CRITIC = Exercise(
    judge_critic,
    difficulty="medium",
    minutes=15,
    cases=(
        Case(
            {
                "values": torch.tensor([[0.8, 0.9, 1.0], [0.3, 0.1, 0.0], [0.5, 0.9, 1.0], [0.4, 0.2, 0.1]]),
                "scores": torch.tensor([1.0, 0.0, 1.0, 0.0]),
            },
            "the later tokens' values have seen the reply, and a baseline may not: look at the value before it",
        ),
        Case(
            {
                "values": torch.tensor([[3.0, 0.9], [0.2, 0.1], [2.4, 0.5]]),
                "scores": torch.tensor([1.0, 0.0, 0.8]),
            },
            "a critic in the right order and on the wrong scale: subtracting it makes things worse",
        ),
        Case(
            {
                "values": torch.tensor([[0.1, 0.7], [0.0, 0.4], [0.0, 0.1], [0.05, 0.3]]),
                "scores": torch.tensor([1.0, 0.0, math.nan, 0.2]),
            },
            "one score is missing, and what the critic knows is little",
        ),
        Case(
            {"values": torch.tensor([[0.5], [0.1], [0.3]]), "scores": torch.tensor([1.0, 1.0, 1.0])},
            "all scores are equal: there is nothing to explain",
        ),
        Case(
            {
                "values": torch.tensor([[5.1, 1.0], [5.9, 0.0], [5.0, 0.0]]),
                "scores": torch.tensor([0.1, 0.9, 0.0]),
            },
            "every value is 5 too high: one constant for all, which changes no comparison",
        ),
    ),
    hints=(
        "Which of the T values of a reply was there before any of it? Use that one, and the rows with a score.",
        "1 minus the variance of (score - value) over the variance of the scores, over the rows whose score is there. "
        "With fewer than two scores, or when all are equal, it is NaN.",
        "scored = ~scores.isnan(); known = values[scored, 0]; ev = 1 - (scores[scored] - known).var() / "
        "scores[scored].var(); then compare with .2",
    ),
    mistakes=(
        Mistake(
            every_token,
            "all tokens' values are compared with the score: the later ones have seen the reply. Take the first column",
        ),
        Mistake(
            squared_correlation,
            "this is the squared correlation, which forgives a wrong scale; subtracting the value does not",
        ),
        Mistake(
            mean_squared_error, "a mean square counts a constant offset as ignorance; the errors' variance does not"
        ),
        Mistake(what_is_left, "this is the share that is left; what is explained is 1 minus it"),
        Mistake(missing_as_zero, "a missing score is counted as 0; leave the row out"),
        Mistake(better_than_nothing, "the line is at .2: anything above 0 may be luck"),
    ),
)

# ---------------------------------------------------------------- verdict_of


def verdict_of(low, high, claimed):
    if low > 1:
        return "reproduced" if high >= claimed else "a smaller gain"
    if high >= claimed:
        return "too few runs to tell"
    return "the opposite" if high < 1 else "no clear gain"


def claim_inside(low, high, claimed):
    if low <= claimed <= high:
        return "reproduced"
    return verdict_of(low, high, claimed)


def middle_decides(low, high, claimed):
    middle = (low + high) / 2
    if middle >= claimed:
        return "reproduced"
    return "a smaller gain" if middle > 1 else "the opposite"


def wholly_above_the_claim(low, high, claimed):
    if low >= claimed:
        return "reproduced"
    if low > 1:
        return "a smaller gain"
    return verdict_of(low, high, claimed)


def any_gain_is_enough(low, high, claimed):
    return "reproduced" if low > 1 else verdict_of(low, high, claimed)


def doubt_is_denial(low, high, claimed):
    verdict = verdict_of(low, high, claimed)
    return "the opposite" if verdict in ("no clear gain", "too few runs to tell") else verdict


VERDICT_OF = Exercise(
    verdict_of,
    difficulty="easy",
    minutes=10,
    cases=(
        Case({"low": 1.2, "high": 2.8, "claimed": 1.8}, "surely better than PPO, and 1.8 is possible"),
        Case({"low": 1.9, "high": 2.4, "claimed": 1.8}, "even better than was claimed"),
        Case({"low": 1.1, "high": 1.3, "claimed": 1.8}, "surely better, and surely less than claimed"),
        Case({"low": 0.6, "high": 2.5, "claimed": 1.8}, "so wide that it holds the claim, and a loss"),
        Case({"low": 0.9, "high": 1.2, "claimed": 1.8}, "around no change; the claim is out of reach"),
        Case({"low": 0.7, "high": 0.9, "claimed": 1.8}, "surely worse than PPO"),
    ),
    hints=(
        "Two questions: does the whole interval lie on one side of 1, which is no change? Does it reach the claim?",
        "If low > 1 there is a gain: reproduced if high >= claimed, else smaller. Else, if high >= claimed, there are "
        "too few runs to tell.",
        "What is left has low <= 1 and high < claimed: 'the opposite' if high < 1, else 'no clear gain'.",
    ),
    mistakes=(
        Mistake(
            claim_inside,
            "an interval that holds the claim may hold 'no change' as well, and then the runs cannot tell",
        ),
        Mistake(middle_decides, "the middle alone decides, so the width of the interval says nothing; use both ends"),
        Mistake(
            wholly_above_the_claim,
            "that asks the interval to lie wholly above the claim; it has to lie above 1 and to reach the claim",
        ),
        Mistake(any_gain_is_enough, "a gain that is surely smaller than claimed does not reproduce the claim"),
        Mistake(doubt_is_denial, "an interval that holds 1 does not show the opposite, it shows nothing clear"),
    ),
)

EXERCISES = (GAE_OF_REPLY, JUDGE_CRITIC, VERDICT_OF)
