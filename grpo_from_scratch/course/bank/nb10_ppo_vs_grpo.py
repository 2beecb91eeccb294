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


def nothing_moves_on(rewards, values, next_value, end, lam):
    following = next_value if end == "goes on" else 0.0
    running, advantages = 0.0, torch.zeros_like(values)
    for t in reversed(range(len(values))):
        running = rewards[t] + following - values[t] + lam * running
        advantages[t] = running
    return advantages


def reply(rewards, values, next_value, end, lam):
    tensors = {"rewards": torch.tensor(rewards), "values": torch.tensor(values)}
    return tensors | {"next_value": next_value, "end": end, "lam": lam}


GAE_OF_REPLY = Exercise(
    gae_of_reply,
    difficulty="medium",
    minutes=20,
    cases=(
        Case(
            reply([0.0, 0.0, 0.9], [0.4, 0.6, 0.5], 0.3, "eos", 0.5),
            "a reply that ended itself; the critic's errors are +.2, −.1 and +.4",
        ),
        Case(
            reply([0.0, -0.1, 0.0, 0.5], [0.5, 0.5, 0.4, 0.4], 0.7, "length", 0.9),
            "cut at the limit, and its score of .5 is paid on the last token: nothing follows",
        ),
        Case(
            reply([0.0, 0.0, -0.2], [0.2, 0.3, 0.5], 0.8, "goes on", 0.95),
            "no score yet: the next batch goes on with this reply, and the critic says what it is worth then",
        ),
        Case(
            reply([1.0], [0.25], 0.5, "eos", 1.0),
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
        Mistake(
            nothing_moves_on,
            "what follows stays the same for all tokens: after each step back, following becomes values[t]",
        ),
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
    return judged(float(1 - (spread - values[scored].double().flatten()).var() / spread.var()))


def last_token(values, scores):
    return judge_critic(values.flip(1), scores)


def nan_left_in(values, scores):
    return judge_critic(values, scores) if not scores.isnan().any() else (math.nan, "did not learn")


def squared_correlation(values, scores):
    scored = ~scores.isnan()
    return judged(float(torch.corrcoef(torch.stack([values[scored, 0], scores[scored]]).double())[0, 1] ** 2))


def mean_squared_error(values, scores):
    scored = ~scores.isnan()
    error = (scores[scored] - values[scored, 0]).double().square().mean()
    return judged(float(1 - error / scores[scored].double().var(correction=0)))


def what_is_left(values, scores):
    return judged(1 - judge_critic(values, scores)[0])


def missing_as_zero(values, scores):
    return judge_critic(values, scores.nan_to_num(0.0))


def better_than_nothing(values, scores):
    ev, word = judge_critic(values, scores)
    return (ev, word) if math.isnan(ev) else (ev, "learned" if ev > 0 else "did not learn")


def batch(values, scores):
    return {"values": torch.tensor(values), "scores": torch.tensor(scores)}


JUDGE_CRITIC = Exercise(
    judge_critic,
    difficulty="medium",
    minutes=15,
    cases=(
        Case(
            batch([[0.8, 0.9, 1.0], [0.3, 0.1, 0.0], [0.5, 0.9, 1.0], [0.4, 0.2, 0.1]], [1.0, 0.0, 1.0, 0.0]),
            "the later tokens' values have seen the reply, and a baseline may not: look at the value before it",
        ),
        Case(
            batch([[3.0, 0.9], [0.2, 0.1], [2.4, 0.5]], [1.0, 0.0, 0.8]),
            "a critic in the right order and on the wrong scale: subtracting it makes things worse",
        ),
        Case(
            batch([[0.1, 0.7], [0.0, 0.4], [0.0, 0.1], [0.05, 0.3]], [1.0, 0.0, math.nan, 0.2]),
            "one score is missing, and what the critic knows is little",
        ),
        Case(
            batch([[0.5], [0.1], [0.3]], [1.0, 1.0, 1.0]),
            "all scores are equal: there is nothing to explain",
        ),
        Case(
            batch([[5.1, 1.0], [5.9, 0.0], [5.0, 0.0]], [0.1, 0.9, 0.0]),
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
        Mistake(last_token, "this is the value before the last token, which has read the reply: take the first column"),
        Mistake(nan_left_in, "a missing score makes everything NaN: leave its row out before you compute"),
        Mistake(
            squared_correlation,
            "this is the squared correlation, which forgives a wrong scale; subtracting the value does not",
        ),
        Mistake(
            mean_squared_error,
            "a mean square (as in R²) counts a constant offset as ignorance; the errors' variance does not",
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


def instead_of(verdicts, told):
    def answer(low, high, claimed):
        verdict = verdict_of(low, high, claimed)
        return told if verdict in verdicts else verdict

    return answer


never_too_few = instead_of(["too few runs to tell"], "no clear gain")
any_gain_is_enough = instead_of(["a smaller gain"], "reproduced")
doubt_is_denial = instead_of(["no clear gain", "too few runs to tell"], "the opposite")


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


def only_if_it_holds_the_claim(low, high, claimed):
    if low > 1:
        return "reproduced" if low <= claimed <= high else "a smaller gain"
    return verdict_of(low, high, claimed)


def no_change_is_zero(low, high, claimed):
    if low > 0:
        return "reproduced" if high >= claimed else "a smaller gain"
    return "the opposite" if high < 0 else "no clear gain"


VERDICT_OF = Exercise(
    verdict_of,
    difficulty="easy",
    minutes=10,
    cases=(
        Case({"low": 1.2, "high": 2.8, "claimed": 1.8}, "surely better than PPO, and 1.8 is possible"),
        Case({"low": 1.9, "high": 2.4, "claimed": 1.8}, "even better than was claimed"),
        Case({"low": 1.1, "high": 1.3, "claimed": 1.8}, "surely better, and surely less than claimed"),
        Case({"low": 0.7, "high": 0.9, "claimed": 1.8}, "surely worse than PPO"),
        Case({"low": 0.6, "high": 2.5, "claimed": 1.8}, "so wide that it holds the claim, and a loss"),
        Case({"low": 0.9, "high": 1.2, "claimed": 1.8}, "around no change; the claim is out of reach"),
    ),
    hints=(
        "Two questions: does the whole interval lie on one side of 1, which is no change? Does it reach the claim?",
        "If low > 1 there is a gain: reproduced if high >= claimed, else smaller. Else, if high >= claimed, there are "
        "too few runs to tell.",
        "What is left has low <= 1 and high < claimed: 'the opposite' if high < 1, else 'no clear gain'.",
    ),
    mistakes=(
        Mistake(no_change_is_zero, "compared with 0; the ends are those of a ratio, so no change is 1"),
        Mistake(
            only_if_it_holds_the_claim,
            "an interval wholly above the claim reproduces it all the more: high >= claimed is enough",
        ),
        Mistake(
            never_too_few, "an interval that holds 1 and reaches the claim cannot decide between them: too few runs"
        ),
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
