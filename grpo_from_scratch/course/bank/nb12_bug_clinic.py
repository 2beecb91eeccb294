"""Exercises of 12_bug_clinic: name the bug from the instruments, an instrument of your own, the kind of a mistake."""

import torch

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake
from grpo_from_scratch.objective.kl import kl_estimate

# ---------------------------------------------------------------- bug_of

KEYS = (
    "sampler_gap",
    "ends_trained",
    "advantage_by_prompt",
    "advantage_slope",
    "silenced_push",
    "kl_away",
    "kl_k1_first",
    "kl_k3_first",
    "reward_gain",
)
# The notebook's runs with seed 1, to three digits: means over the steps, and the gain of the held-out reward.
RECORDED = {
    "healthy": (1.89e-07, 1.0, 9.13e-09, 1.1429, 0.0, 0.0, 0.0441, 0.0415, 0.0544),
    "temperature": (0.0686, 1.0, 1.02e-08, 1.1429, 0.0, 0.0, 0.0949, 0.0567, 0.102),
    "eos": (2.01e-07, 0.0, 8.57e-09, 1.1429, 0.0, 0.0, 0.0488, 0.0485, 0.0982),
    "shuffle": (1.91e-07, 1.0, 0.885, 1.0137, 0.0, 0.0, 0.119, 0.12, 0.0629),
    "own reward": (1.94e-07, 1.0, 1.13e-08, 1.0, 0.0, 0.0, 0.0463, 0.0475, 0.0252),
    "max": (1.97e-07, 1.0, 8.5e-09, 1.1429, 0.0181, 0.0, 0.0967, 0.0946, 0.0767),
    "k1": (2.52e-07, 1.0, 1.13e-08, 1.1429, 0.0, 0.435, 3.66, 3.38, -0.419),
    "reversed k3": (1.87e-07, 1.0, 1.04e-08, 1.1429, 0.0, 0.0, 0.0756, 42.3, 0.108),
}


def bug_of(row):
    if row["sampler_gap"] > 0.001:
        return "temperature"
    if row["ends_trained"] < 1:
        return "eos"
    if row["advantage_by_prompt"] > 0.001:
        return "shuffle"
    if abs(row["advantage_slope"] - 8 / 7) > 0.001:
        return "own reward"
    if row["silenced_push"] > 0.001:
        return "max"
    if row["kl_away"] > 0.001:
        return "k1"
    if row["kl_k3_first"] > 2.5 * row["kl_k1_first"]:
        return "reversed k3"
    return "healthy"


def trusts_the_reward(row):
    return "healthy" if row["reward_gain"] > 0 else bug_of(row)


def wants_exact_zeros(row):
    return "temperature" if row["sampler_gap"] > 0 else bug_of(row)


def expects_a_slope_of_one(row):
    found = bug_of(row)
    if found in ("temperature", "eos", "shuffle"):
        return found
    return "own reward" if abs(row["advantage_slope"] - 1) > 0.001 else bug_of(row | {"advantage_slope": 8 / 7})


def slope_before_prompts(row):
    return "own reward" if abs(row["advantage_slope"] - 8 / 7) > 0.001 else bug_of(row)


def the_other_way_round(row):
    found = bug_of(row)
    if found in ("reversed k3", "healthy"):
        return "reversed k3" if row["kl_k1_first"] > 2.5 * row["kl_k3_first"] else "healthy"
    return found


def blames_a_large_kl(row):
    return "k1" if row["kl_k1_first"] > 0.05 else bug_of(row)


def recorded_case(name, why):
    return Case({"row": dict(zip(KEYS, RECORDED[name], strict=True))}, why)


BUG_OF = Exercise(
    bug_of,
    difficulty="medium",
    minutes=15,
    cases=(
        recorded_case("healthy", "nothing is wrong here, and rounding is not a bug"),
        recorded_case("temperature", "its reward rises"),
        recorded_case("eos", "its reward rises"),
        recorded_case("shuffle", "its reward rises"),
        recorded_case("own reward", "its reward rises"),
        recorded_case("max", "its reward rises"),
        recorded_case("k1", "its reward falls to nothing"),
        recorded_case("reversed k3", "its reward rises"),
    ),
    hints=(
        "Seven ifs and a last return. Six instruments have a value that you know beforehand: 0, 1, or 8/7. Allow a "
        "thousandth for rounding.",
        "Ask about the prompts' advantages before the slope: replies compared with strangers have a wrong slope too. "
        "The KL is last: the two estimates should agree, and one of them is several times the other.",
        "sampler_gap > .001: temperature. ends_trained < 1: eos. advantage_by_prompt > .001: shuffle. advantage_slope "
        "off 8/7: own reward. silenced_push > .001: max. kl_away > .001: k1. kl_k3_first > 2.5 kl_k1_first: reversed "
        "k3.",
    ),
    mistakes=(
        Mistake(trusts_the_reward, "a reward that rises is taken for health; six of these seven bugs let it rise"),
        Mistake(wants_exact_zeros, "a gap of a ten-millionth is rounding: allow a thousandth"),
        Mistake(
            expects_a_slope_of_one,
            "1 is the slope of the group's own mean; the mean of the seven others gives 8/7, and 1 is the bug",
        ),
        Mistake(
            slope_before_prompts,
            "grouping by position bends the slope as well: ask about advantage_by_prompt first",
        ),
        Mistake(the_other_way_round, "it is k3 that explodes: divide kl_k3_first by kl_k1_first"),
        Mistake(
            blames_a_large_kl,
            "the size of a KL says little: it depends on the coefficient, and on how much there was to learn",
        ),
    ),
)

# ---------------------------------------------------------------- pulls_away


def pulls_away(estimate, logps, ref_logps):
    leaf = logps.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(estimate(leaf, ref_logps).sum(), leaf)
    size, away = slope.abs(), slope * (logps - ref_logps) < 0
    return size[away].sum() / size.sum() if size.sum() > 0 else size.sum()


def follows_the_slope(estimate, logps, ref_logps):
    share = pulls_away(estimate, logps, ref_logps)
    return 1 - share if share > 0 else share


def climbs(estimate, logps, ref_logps):
    leaf = logps.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(estimate(leaf, ref_logps).sum(), leaf)
    size, away = slope.abs(), slope * (logps - ref_logps) > 0
    return size[away].sum() / size.sum() if size.sum() > 0 else size.sum()


def counts_tokens(estimate, logps, ref_logps):
    leaf = logps.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(estimate(leaf, ref_logps).sum(), leaf)
    return (slope * (logps - ref_logps) < 0).float().mean()


def looks_at_the_value(estimate, logps, ref_logps):
    value = estimate(logps, ref_logps)
    return value[value < 0].abs().sum() / value.abs().sum() if value.abs().sum() > 0 else value.abs().sum()


def divides_by_zero(estimate, logps, ref_logps):
    leaf = logps.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(estimate(leaf, ref_logps).sum(), leaf)
    size = slope.abs()
    return size[slope * (logps - ref_logps) < 0].sum() / size.sum()


def k1(logps, ref_logps):
    """k1 = log π − log π_ref"""
    return kl_estimate(logps, ref_logps, "k1")


def k2(logps, ref_logps):
    """k2, half the squared log-ratio"""
    return kl_estimate(logps, ref_logps, "k2")


def k3(logps, ref_logps):
    """k3, the right way round"""
    return kl_estimate(logps, ref_logps, "k3")


def reversed_k3(logps, ref_logps):
    """k3 with policy and reference exchanged"""
    return kl_estimate(ref_logps, logps, "k3")


def rewarded_distance(logps, ref_logps):
    """−k2: somebody turned the sign, and pays for distance"""
    return -kl_estimate(logps, ref_logps, "k2")


def mixture(logps, ref_logps):
    """k2 for tokens above the reference, k1 for those below"""
    return torch.where(logps > ref_logps, k2(logps, ref_logps), k1(logps, ref_logps))


MIXED = torch.tensor([[-0.5, -2.0, -1.0], [-3.0, -0.1, -1.5]])
REFERENCE = torch.tensor([[-1.0, -1.0, -1.2], [-1.0, -0.4, -3.0]])


def pull_case(estimate, why, logps=MIXED):
    return Case({"estimate": estimate, "logps": logps, "ref_logps": REFERENCE}, why)


PULLS_AWAY = Exercise(
    pulls_away,
    difficulty="hard",
    minutes=15,
    cases=(
        pull_case(k3, "k3 always pulls back: 0"),
        pull_case(k2, "so does k2"),
        pull_case(k1, "k1 pulls every token down, those below the reference too"),
        pull_case(rewarded_distance, "a turned sign: all of the gradient leads away"),
        pull_case(reversed_k3, "the reversed k3 pulls back as well, which is why this instrument does not see it"),
        pull_case(k3, "at the reference there is no gradient at all: 0, not 0/0", REFERENCE),
        pull_case(mixture, "a mixture: the share is of the gradient's size, not of the number of tokens"),
    ),
    hints=(
        "You need the slope of estimate(logps, ref_logps).sum() by logps: make a leaf of your own with "
        "logps.detach().clone().requires_grad_(), and take torch.autograd.grad.",
        "Descent moves a log-prob *against* its slope. So a token above the reference is pulled back when its slope is "
        "positive, one below it when its slope is negative: away is slope * (logps - ref_logps) < 0.",
        "size = slope.abs(); the answer is size[away].sum() / size.sum(), and 0 where size.sum() is 0.",
    ),
    mistakes=(
        Mistake(climbs, "descent goes against the slope: a positive slope lowers the log-prob"),
        Mistake(follows_the_slope, "this is the share that pulls back: take the others"),
        Mistake(counts_tokens, "this counts tokens; weigh each by the size of its slope"),
        Mistake(looks_at_the_value, "this looks at the estimate's value; what a loss does is its gradient"),
        Mistake(divides_by_zero, "at the reference this is 0/0: return 0 where there is no gradient"),
    ),
)

# ---------------------------------------------------------------- kind_of

KINDS = {
    "A": "mask by value",
    "B": "order taken for granted",
    "C": "two distributions for one",
    "D": "baseline contains what it judges",
    "E": "value taken for a loss",
    "F": "mean of means",
}


def kind_of(line):
    return KINDS[line]


def exchanged(*pairs):
    """The right answers, but for some that are exchanged."""
    swaps = dict(pairs) | {second: first for first, second in pairs}

    def answer(line):
        return KINDS[swaps.get(line, line)]

    return answer


KIND_OF = Exercise(
    kind_of,
    difficulty="easy",
    minutes=10,
    cases=(
        Case({"line": "A"}, "labels[ids == tokenizer.pad_token_id] = -100, with pad = eos"),
        Case({"line": "B"}, "rewards.view(-1, G) after prompts were sorted by length"),
        Case({"line": "C"}, "model.train() while old log-probs are taken, with dropout"),
        Case({"line": "D"}, "critic.fit(states, returns); advantages = returns - critic(states)"),
        Case({"line": "E"}, "loss = -(rewards - baseline).mean()"),
        Case({"line": "F"}, "loss = masked_mean(piece) / pieces, for pieces of different lengths"),
    ),
    hints=(
        "Ask of each line what it takes for granted.",
        "A trusts an id, B a place. For C ask which distribution gave the tokens, and which scores them; for D, which "
        "rewards the critic has seen when it judges them.",
        "E has the right value and no gradient. F is right when all pieces are alike.",
    ),
    mistakes=(
        Mistake(exchanged(("A", "B")), "A goes wrong by what a token is, B by where a row stands"),
        Mistake(
            exchanged(("C", "D")),
            "C scores under another distribution than it sampled from; D compares a reward with itself",
        ),
        Mistake(
            exchanged(("E", "F")), "E never touches the policy's log-probs; F weighs a token by the piece it is in"
        ),
        Mistake(exchanged(("B", "D")), "D knows whose returns they are; it has seen them before it judges them"),
    ),
)

EXERCISES = (PULLS_AWAY, BUG_OF, KIND_OF)
