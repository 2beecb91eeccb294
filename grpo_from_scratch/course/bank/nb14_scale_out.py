"""Exercises of 14_scale_out: the mean of means, and groups kept whole."""

import math

import torch

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

# ---------------------------------------------------------------- global_mean


def global_mean(per_rank):
    total = sum(own.nansum() for own in per_rank)
    count = sum((~own.isnan()).sum() for own in per_rank)
    return total / count


def mean_of_means(per_rank):
    return torch.stack([own.mean() for own in per_rank]).mean()


def sum_over_ranks(per_rank):
    return sum(own.nansum() for own in per_rank) / len(per_rank)


def missing_spreads(per_rank):
    return torch.cat(per_rank).mean()


def missing_is_zero(per_rank):
    return torch.cat(per_rank).nan_to_num().mean()


def missing_weighs(per_rank):
    total = sum(own.nanmean().nan_to_num() * len(own) for own in per_rank)
    return total / sum(len(own) for own in per_rank)


def rank_0_speaks_for_all(per_rank):
    return per_rank[0].nanmean()


GLOBAL_MEAN = Exercise(
    global_mean,
    difficulty="easy",
    minutes=10,
    cases=(
        Case({"per_rank": [torch.tensor([2.0, 4.0, 6.0]), torch.tensor([10.0])]}, "three rewards and one"),
        Case(
            {"per_rank": [torch.tensor([1.0, math.nan, 3.0]), torch.tensor([8.0, 4.0])]},
            "one reward is missing: it is NaN, and there are four others",
        ),
        Case(
            {"per_rank": [torch.tensor([5.0, 1.0, 3.0]), torch.tensor([]), torch.tensor([math.nan]), torch.ones(1)]},
            "one rank has no replies, another has one without a reward",
        ),
    ),
    hints=(
        "Which two numbers would every rank have to send, so that the mean of all could be made of their sums?",
        "The sum of its rewards that are there (nansum), and how many are there. Divide once, at the end.",
        "sum(own.nansum() for own in per_rank) / sum((~own.isnan()).sum() for own in per_rank)",
    ),
    mistakes=(
        Mistake(mean_of_means, "this is the mean of the ranks' means, so a rank's only reward counts as much as three"),
        Mistake(sum_over_ranks, "the sum is divided by the number of ranks; divide by the number of rewards"),
        Mistake(missing_spreads, "a missing reward is NaN, and turns the whole mean into NaN; leave it out"),
        Mistake(missing_is_zero, "a missing reward counts as 0; it should count neither in the sum nor in the count"),
        Mistake(missing_weighs, "a missing reward is left out of the sum but still counted in the denominator"),
        Mistake(rank_0_speaks_for_all, "this is rank 0's own mean; the other ranks are not in it"),
    ),
)

# ---------------------------------------------------------------- owners


def owners(prompts, group_size, ranks):
    whole = prompts >= ranks
    blocks = torch.arange(prompts if whole else prompts * group_size).tensor_split(ranks)
    owner = torch.cat([torch.full((len(block),), rank) for rank, block in enumerate(blocks)])
    return owner.repeat_interleave(group_size) if whole else owner


def cuts_groups(prompts, group_size, ranks):
    blocks = torch.arange(prompts * group_size).tensor_split(ranks)
    return torch.cat([torch.full((len(block),), rank) for rank, block in enumerate(blocks)])


def always_whole(prompts, group_size, ranks):
    blocks = torch.arange(prompts).tensor_split(ranks)
    owner = torch.cat([torch.full((len(block),), rank) for rank, block in enumerate(blocks)])
    return owner.repeat_interleave(group_size)


def in_turn(prompts, group_size, ranks):
    if prompts < ranks:
        return torch.arange(prompts * group_size) % ranks
    return (torch.arange(prompts) % ranks).repeat_interleave(group_size)


def a_rank_too_many(prompts, group_size, ranks):
    if prompts < ranks:
        return cuts_groups(prompts, group_size, ranks)
    return (torch.arange(prompts) // (prompts // ranks)).repeat_interleave(group_size)


def rest_to_the_last(prompts, group_size, ranks):
    things = prompts if prompts >= ranks else prompts * group_size
    owner = (torch.arange(things) // max(things // ranks, 1)).clamp(max=ranks - 1)
    return owner.repeat_interleave(group_size) if prompts >= ranks else owner


def rounded_up(prompts, group_size, ranks):
    things = prompts if prompts >= ranks else prompts * group_size
    owner = torch.arange(things) // math.ceil(things / ranks)
    return owner.repeat_interleave(group_size) if prompts >= ranks else owner


def rest_dropped(prompts, group_size, ranks):
    each = prompts // ranks or 1
    return torch.arange(min(ranks, prompts)).repeat_interleave(each * group_size)


def one_for_each_prompt(prompts, group_size, ranks):
    return owners(prompts, 1, ranks)


OWNERS = Exercise(
    owners,
    difficulty="medium",
    minutes=15,
    cases=(
        Case({"prompts": 2, "group_size": 4, "ranks": 2}, "two prompts of four, two ranks: one group each"),
        Case({"prompts": 3, "group_size": 2, "ranks": 2}, "three prompts on two ranks: whole groups, two and one"),
        Case({"prompts": 5, "group_size": 2, "ranks": 3}, "five prompts on three ranks: two, two and one"),
        Case({"prompts": 4, "group_size": 3, "ranks": 3}, "four prompts on three ranks: no rank may be idle"),
        Case({"prompts": 1, "group_size": 7, "ranks": 2}, "one group of seven on two ranks: it has to be cut"),
        Case({"prompts": 1, "group_size": 1, "ranks": 2}, "a single reply: rank 1 has nothing, and nothing breaks"),
    ),
    hints=(
        "What is dealt: prompts, or completions? Decide that first; then deal so many things to so many ranks.",
        "torch.arange(things).tensor_split(ranks) makes blocks in order, the first ones longer if need be.",
        "With prompts >= ranks: the owner of each prompt, then .repeat_interleave(group_size). Otherwise the blocks of "
        "prompts * group_size completions are the answer.",
    ),
    mistakes=(
        Mistake(cuts_groups, "completions are dealt although every rank could have a whole prompt: a group is cut"),
        Mistake(
            always_whole, "with fewer prompts than ranks somebody is idle: then deal the completions, not the prompts"
        ),
        Mistake(in_turn, "these are dealt in turn, like cards; deal blocks in order, so that ranks in order are rows"),
        Mistake(
            a_rank_too_many,
            "what is left over goes to a rank that does not exist: prompts // ranks is rounded down, so the last "
            "prompts land beyond the last rank",
        ),
        Mistake(
            rest_to_the_last,
            "everything left over goes to the last rank, and all others wait for it; give one more to each of the "
            "first ranks",
        ),
        Mistake(
            rounded_up,
            "blocks of the rounded-up size use up the prompts before the last rank gets one; it is idle, or has less "
            "than its part",
        ),
        Mistake(rest_dropped, "what does not divide is dropped: there are prompts * group_size completions to hold"),
        Mistake(one_for_each_prompt, "this is the owner of each prompt; every one of its completions needs one"),
    ),
)

EXERCISES = (GLOBAL_MEAN, OWNERS)
