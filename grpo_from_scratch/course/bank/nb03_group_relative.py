"""Exercises of 03_group_relative: groups by id, equal rewards in float32, groups that teach nothing."""

import torch

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

# ---------------------------------------------------------------- centre_by_id


def centre_by_id(rewards, groups):
    centred = torch.zeros_like(rewards)
    for group in groups.unique():
        rows = groups == group
        centred[rows] = rewards[rows] - rewards[rows].mean()
    return centred


def by_position(rewards, groups):
    table = rewards.view(len(groups.unique()), -1)
    return (table - table.mean(1, keepdim=True)).flatten()


def by_turns(rewards, groups):
    table = rewards.view(-1, len(groups.unique()))
    return (table - table.mean(0)).flatten()


def in_place(rewards, groups):
    for group in groups.unique():
        rewards[groups == group] -= rewards[groups == group].mean()
    return rewards


def one_column_for_each_number(rewards, groups):
    members = torch.nn.functional.one_hot(groups).float()
    return rewards - members @ ((members.T @ rewards) / members.sum(0))


def against_the_batch(rewards, groups):
    return rewards - rewards.mean()


def left_sorted(rewards, groups):
    order = groups.argsort()
    return centre_by_id(rewards, groups)[order]


def the_mean_itself(rewards, groups):
    return rewards - centre_by_id(rewards, groups)


def ids_as_positions(rewards, groups):
    count = int(groups.max()) + 1
    total = torch.zeros(count).index_add(0, groups, rewards)
    return rewards - (total / torch.zeros(count).index_add(0, groups, torch.ones_like(rewards)))[groups]


CENTRE_BY_ID = Exercise(
    centre_by_id,
    difficulty="easy",
    minutes=10,
    cases=(
        Case(
            {"rewards": torch.tensor([1.0, 10.0, 3.0, 20.0]), "groups": torch.tensor([0, 1, 0, 1])},
            "two groups, and their rows take turns",
        ),
        Case(
            {"rewards": torch.tensor([2.0, 0.0, 5.0, 1.0, 7.0]), "groups": torch.tensor([9, 9, 3, 9, 3])},
            "groups of three and of two; ids are names, not positions",
        ),
        Case(
            {"rewards": torch.tensor([4.0, 1.0, 2.0]), "groups": torch.tensor([-5, 2, 2])},
            "the first row is alone in its group, and an id may be negative",
        ),
    ),
    hints=(
        "Go through groups.unique(), one id at a time. The order of the rows must not matter.",
        "rows = groups == group is a mask: rewards[rows] are that group's rewards, wherever they stand.",
        "for group in groups.unique(): rows = groups == group; centred[rows] = rewards[rows] - rewards[rows].mean()",
    ),
    mistakes=(
        Mistake(by_position, "rows were grouped by where they stand (view or reshape), and the ids say otherwise"),
        Mistake(by_turns, "rows were grouped by where they stand, as if the groups always took turns: ask the ids"),
        Mistake(in_place, "it writes into the rewards it was given: fill a new tensor, torch.zeros_like(rewards)"),
        Mistake(
            one_column_for_each_number,
            "one_hot has a column for every number up to the largest id; an id that nobody has gives 0 / 0 there",
        ),
        Mistake(against_the_batch, "every reward was compared with the mean of all, whatever its group"),
        Mistake(left_sorted, "the values are right but stand in another order than the rewards: undo the sorting"),
        Mistake(the_mean_itself, "these are the groups' means; subtract them from the rewards"),
        Mistake(ids_as_positions, "an id was used as a position in a table; ids can be any integers, negative too"),
    ),
)

# ---------------------------------------------------------------- safe_advantages


def safe_advantages(rewards):
    above = rewards.double() - rewards.double().min()
    deviation = above - above.mean()
    std = (deviation.square().sum() / max(len(rewards) - 1, 1)).sqrt()
    return (deviation / (std + 1e-4)).float()


def tiny_eps(rewards):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-8)


def residue(rewards):
    return (rewards - rewards.mean()) / (rewards.std() + 1e-4)


def biased(rewards):
    deviation = exact_deviation(rewards)
    return (deviation / (deviation.square().mean().sqrt() + 1e-4)).float()


def clamped(rewards):
    deviation = exact_deviation(rewards)
    return (deviation / (deviation.square().sum() / max(len(rewards) - 1, 1)).sqrt().clamp(min=1e-4)).float()


def inside_the_root(rewards):
    deviation = exact_deviation(rewards)
    return (deviation / (deviation.square().sum() / max(len(rewards) - 1, 1) + 1e-4).sqrt()).float()


def alone_is_nan(rewards):
    deviation = exact_deviation(rewards)
    return (deviation / ((deviation.square().sum() / (len(rewards) - 1)).sqrt() + 1e-4)).float()


def not_divided(rewards):
    return exact_deviation(rewards).float()


def squares_of_large_numbers(rewards):
    above = rewards - rewards[0]
    count = len(rewards)
    variance = (rewards.square().mean() - rewards.mean().square()).clamp(min=0) * count / max(count - 1, 1)
    return torch.where((above == 0).all(), 0.0, (above - above.mean()) / (variance.sqrt() + 1e-4))


def exact_deviation(rewards):
    """float64, exactly 0 when all rewards are equal."""
    above = rewards.double() - rewards.double().min()
    return above - above.mean()


SAFE_ADVANTAGES = Exercise(
    safe_advantages,
    difficulty="medium",
    minutes=20,
    cases=(
        Case({"rewards": torch.full((8,), 0.1)}, "eight times the same reward"),
        Case({"rewards": torch.full((6,), 0.3)}, "six times the same reward"),
        Case({"rewards": torch.tensor([1.0, 1.0, 0.0, 0.0])}, "two right, two wrong"),
        Case({"rewards": torch.tensor([0.5, 0.501, 0.502, 0.503])}, "rewards that differ by thousandths: eps counts"),
        Case({"rewards": torch.tensor([3.0])}, "a group of one: nobody to compare with"),
        Case(
            {"rewards": torch.tensor([0.0, 1.0, 2.0, 3.0]) + 1_000_000},
            "a large offset: the same advantages as for 0, 1, 2, 3",
        ),
    ),
    hints=(
        "In float32 the mean of equal numbers can be one bit off, and a tiny eps does not hide it. "
        "What can you subtract from equal numbers that leaves exactly 0?",
        "Subtract the smallest reward first, in float64; then the mean of what is left. A group of one has no n - 1.",
        "above = rewards.double() - rewards.double().min(); deviation = above - above.mean(); std = "
        "(deviation.square().sum() / max(n - 1, 1)).sqrt(); return (deviation / (std + 1e-4)).float()",
    ),
    mistakes=(
        Mistake(
            tiny_eps,
            "with eps = 1e-8 rounding noise is divided by rounding noise; eps is 1e-4 here, and equal rewards should "
            "leave no noise in the first place",
        ),
        Mistake(
            residue,
            "equal rewards leave a small residue, because their float32 mean is one bit off, and it should be 0: "
            "subtract the smallest reward first, in float64",
        ),
        Mistake(biased, "the std divides by n (numpy's habit); here it is n - 1"),
        Mistake(clamped, "a clamp is not an addition: the divisor is std + 1e-4"),
        Mistake(inside_the_root, "eps stands inside the root; it belongs outside: std + 1e-4"),
        Mistake(alone_is_nan, "with one reward n - 1 is 0, and 0 / 0 is NaN"),
        Mistake(not_divided, "the rewards are centred but not divided by std + 1e-4"),
        Mistake(
            squares_of_large_numbers,
            "the variance is a mean square minus a squared mean: around 1,000,000 float32 has no digits left for it",
        ),
    ),
)

# ---------------------------------------------------------------- no_signal


def no_signal(probabilities, rewards, group_size):
    chances = [probabilities[rewards == value].sum() ** group_size for value in rewards.unique()]
    return torch.stack(chances).sum()


def the_same_reply(probabilities, rewards, group_size):
    return (probabilities**group_size).sum()


def only_failures(probabilities, rewards, group_size):
    return probabilities[rewards == rewards.min()].sum() ** group_size


def only_successes(probabilities, rewards, group_size):
    return probabilities[rewards == rewards.max()].sum() ** group_size


def with_signal(probabilities, rewards, group_size):
    return 1 - no_signal(probabilities, rewards, group_size)


def one_draw_given(probabilities, rewards, group_size):
    return no_signal(probabilities, rewards, group_size - 1)


def two_values_only(probabilities, rewards, group_size):
    success = probabilities[rewards == rewards.max()].sum()
    return success**group_size + (1 - success) ** group_size


def mean_reward_as_chance(probabilities, rewards, group_size):
    success = (probabilities * rewards).sum()
    return success**group_size + (1 - success) ** group_size


NO_SIGNAL = Exercise(
    no_signal,
    difficulty="medium",
    minutes=15,
    cases=(
        Case(
            {
                "probabilities": torch.tensor([0.25, 0.75], dtype=torch.float64),
                "rewards": torch.tensor([1.0, 0.0], dtype=torch.float64),
                "group_size": 2,
            },
            "right with probability 1/4: both right (1/16) or both wrong (9/16)",
        ),
        Case(
            {
                "probabilities": torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64),
                "rewards": torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64),
                "group_size": 4,
            },
            "two different replies earn the same",
        ),
        Case(
            {
                "probabilities": torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64),
                "rewards": torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64),
                "group_size": 3,
            },
            "three different rewards",
        ),
    ),
    hints=(
        "Which groups have no signal? Those in which every reply earns the same, be it 1, 0 or anything else.",
        "For one value v: the chance that one reply earns v is the sum of the probabilities of all replies worth v. "
        "The group's replies are drawn independently.",
        "The sum over rewards.unique() of probabilities[rewards == value].sum() ** group_size",
    ),
    mistakes=(
        Mistake(the_same_reply, "different replies can earn the same reward: add up the probabilities by reward first"),
        Mistake(only_failures, "a group that is all right teaches as little as one that is all wrong"),
        Mistake(only_successes, "a group that is all wrong teaches as little as one that is all right"),
        Mistake(with_signal, "this is the chance that there is a signal: 1 minus what is asked"),
        Mistake(one_draw_given, "all group_size replies must earn that reward: the exponent is group_size"),
        Mistake(mean_reward_as_chance, "the mean reward is the chance of success only if rewards are 0 or 1"),
        Mistake(two_values_only, "rewards can have more than two values, and replies that fail can differ"),
    ),
    rtol=1e-6,
)

EXERCISES = (CENTRE_BY_ID, SAFE_ADVANTAGES, NO_SIGNAL)
