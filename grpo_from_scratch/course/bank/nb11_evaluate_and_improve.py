"""Exercises of 11_evaluate_and_improve: agreement from pairs, what a metric ranks wrong, how often the rare stand."""

import itertools
import math
from statistics import fmean

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

# ---------------------------------------------------------------- alpha_by_pairs


def alpha_by_pairs(ratings):
    items = [[rating for rating in item if rating is not None] for item in zip(*ratings, strict=True)]
    items = [item for item in items if len(item) > 1]  # a single rating has nothing to agree with
    pool = [rating for item in items for rating in item]
    within = sum((a - b) ** 2 / (len(item) - 1) for item in items for a, b in itertools.permutations(item, 2))
    between = sum((a - b) ** 2 for a, b in itertools.permutations(pool, 2))
    return 1 - (within / len(pool)) / (between / (len(pool) * (len(pool) - 1))) if between else math.nan


def given(ratings, least=2):
    """The items' ratings without the missing ones, and all of them in one list; of items with at least so many."""
    items = [[rating for rating in item if rating is not None] for item in zip(*ratings, strict=True)]
    items = [item for item in items if len(item) >= least]
    return items, [rating for item in items for rating in item]


def squares(values):
    return [(a - b) ** 2 for a, b in itertools.permutations(values, 2)]


def singles_in_the_pool(ratings):
    items, _ = given(ratings)
    _, pool = given(ratings, least=1)
    within = sum(sum(squares(item)) / (len(item) - 1) for item in items) / sum(map(len, items))
    return 1 - within / fmean(squares(pool)) if any(squares(pool)) else math.nan


def all_pairs_alike(ratings):
    items, pool = given(ratings)
    within = fmean(square for item in items for square in squares(item))
    return 1 - within / fmean(squares(pool)) if any(squares(pool)) else math.nan


def items_alike(ratings):
    items, pool = given(ratings)
    within = fmean(fmean(squares(item)) for item in items)
    return 1 - within / fmean(squares(pool)) if any(squares(pool)) else math.nan


def absolute_differences(ratings):
    items, pool = given(ratings)
    within = sum(sum(math.sqrt(s) for s in squares(item)) / (len(item) - 1) for item in items) / len(pool)
    between = fmean(math.sqrt(s) for s in squares(pool))
    return 1 - within / between if between else math.nan


def missing_as_zero(ratings):
    return alpha_by_pairs([[rating or 0 for rating in row] for row in ratings])


def whole_items_only(ratings):
    whole = [item for item in zip(*ratings, strict=True) if None not in item]
    return alpha_by_pairs([list(row) for row in zip(*whole, strict=True)])


def paired_with_itself(ratings):
    alpha, (_, pool) = alpha_by_pairs(ratings), given(ratings)
    return 1 - (1 - alpha) * len(pool) / (len(pool) - 1)


def disagreement(ratings):
    return 1 - alpha_by_pairs(ratings)


def one_when_constant(ratings):
    alpha = alpha_by_pairs(ratings)
    return 1.0 if math.isnan(alpha) else alpha


def share_of_equal_pairs(ratings):
    items, _ = given(ratings)
    return fmean(float(square == 0) for item in items for square in squares(item))


ALPHA_BY_PAIRS = Exercise(
    alpha_by_pairs,
    difficulty="medium",
    minutes=20,
    cases=(
        Case({"ratings": [[1, 2, 4, 5], [1, 3, 4, 5]]}, "two raters, who differ once, by one"),
        Case({"ratings": [[5, 0, 3, 1], [0, 4, 1, 3]]}, "two raters who want opposite things: worse than chance"),
        Case(
            {"ratings": [[1, 5, None, 4], [2, 5, 3, None], [None, 4, 3, 1]]},
            "each item was rated by two or three of the three",
        ),
        Case(
            {"ratings": [[2, 4, None, 3], [1, 4, 0, None], [2, 5, None, 3]]},
            "the third item has one rating only, which nobody can agree with",
        ),
        Case({"ratings": [[5, 5, 5], [5, 5, 5]]}, "everybody says 5, always: chance would agree as well"),
    ),
    hints=(
        "For each item collect the ratings that are there; drop items with fewer than two. Observed: pairs within an "
        "item. Expected: pairs from all the ratings that are left, whatever their item.",
        "A pair of an item with m ratings weighs 1/(m - 1), so that each rating counts once; divide the sum by the "
        "number of ratings, n. Expected is the mean over all n(n - 1) ordered pairs.",
        "within = sum((a - b)**2 / (len(item) - 1) for item in items for a, b in permutations(item, 2)) / n; between = "
        "sum((a - b)**2 for a, b in permutations(pool, 2)) / (n * (n - 1)); nan if between is 0, else "
        "1 - within / between",
    ),
    mistakes=(
        Mistake(disagreement, "this is observed / expected disagreement; agreement is 1 minus that"),
        Mistake(absolute_differences, "the differences are not squared"),
        Mistake(
            paired_with_itself,
            "expected pairs join a rating with itself too, which is never a disagreement: n(n - 1) pairs, not n²",
        ),
        Mistake(missing_as_zero, "a missing rating is counted as a 0, the worst there is; leave it out"),
        Mistake(
            whole_items_only,
            "items are dropped because one of the raters is missing; two ratings are enough to compare",
        ),
        Mistake(
            singles_in_the_pool,
            "an item with a single rating can disagree with nobody, so its rating must not be in the expected pairs",
        ),
        Mistake(
            all_pairs_alike,
            "every pair weighs the same, so an item with three ratings (six ordered pairs) counts three times one with "
            "two; weigh its pairs by 1/(m - 1)",
        ),
        Mistake(items_alike, "every item weighs the same; it is every rating that should: 1/(m - 1), then divide by n"),
        Mistake(
            one_when_constant, "when all ratings are the same, chance agrees as well: 0/0 is not 1. Return math.nan"
        ),
        Mistake(
            share_of_equal_pairs, "this is the share of equal pairs, which says nothing of what chance would reach"
        ),
    ),
)

# ---------------------------------------------------------------- misranked


def misranked(scores, good):
    wrong = pairs = 0
    for of_prompt, is_good in zip(scores, good, strict=True):
        for a, right in zip(of_prompt, is_good, strict=True):
            for b, also_right in zip(of_prompt, is_good, strict=True):
                if right and not also_right:
                    pairs += 1
                    wrong += 1 if b > a else 0.5 if b == a else 0
    return wrong / pairs if pairs else math.nan


def split(of_prompt, is_good):
    rights = [score for score, right in zip(of_prompt, is_good, strict=True) if right]
    return rights, [score for score, right in zip(of_prompt, is_good, strict=True) if not right]


def prompt_shares(scores, good):
    return [share for s, g in zip(scores, good, strict=True) if not math.isnan(share := misranked([s], [g]))]


def over_prompts(scores, good):
    return misranked([sum(scores, [])], [sum(good, [])])


def prompts_alike(scores, good):
    shares = prompt_shares(scores, good)
    return fmean(shares) if shares else math.nan


def best_against_best(scores, good):
    both = [(max(a), max(b)) for s, g in zip(scores, good, strict=True) for a, b in [split(s, g)] if a and b]
    return fmean(1.0 if b > a else 0.5 if a == b else 0.0 for a, b in both) if both else math.nan


def with_ties_as(weight):
    def answer(scores, good):
        pairs = [(a, b) for s, g in zip(scores, good, strict=True) for rights, wrongs in [split(s, g)]
                 for a in rights for b in wrongs]  # fmt: skip
        return fmean(1.0 if b > a else weight if a == b else 0.0 for a, b in pairs) if pairs else math.nan

    return answer


ties_are_right, ties_are_wrong = with_ties_as(0.0), with_ties_as(1.0)


def ranked_right(scores, good):
    return 1 - misranked(scores, good)


def zero_without_pairs(scores, good):
    share = misranked(scores, good)
    return 0.0 if math.isnan(share) else share


MISRANKED = Exercise(
    misranked,
    difficulty="easy",
    minutes=15,
    cases=(
        Case(
            {"scores": [[0.9, 0.4, 0.6]], "good": [[True, True, False]]}, "one prompt: the bad reply beats one of two"
        ),
        Case(
            {"scores": [[0.5, 0.5], [0.8, 0.3]], "good": [[True, False], [True, False]]},
            "equal scores: the metric does not know, and a coin would be right half of the time",
        ),
        Case(
            {"scores": [[0.2, 0.1], [0.9, 0.7]], "good": [[True, False], [True, False]]},
            "an easy prompt and a hard one: only replies to the same prompt can be compared",
        ),
        Case(
            {
                "scores": [[0.1, 0.9], [0.9, 0.8, 0.1, 0.2, 0.3]],
                "good": [[True, False], [True, True, False, False, False]],
            },
            "one pair in the first prompt, six in the second, and every pair counts the same",
        ),
        Case(
            {"scores": [[0.3, 0.2], [0.5]], "good": [[True, True], [False]]}, "no pair of a good and a bad reply at all"
        ),
    ),
    hints=(
        "Go through the prompts; in each, through every good reply and every bad one. Count pairs, and those in which "
        "the bad one scores higher.",
        "An equal score counts a half. Divide at the end, once, by the number of all pairs; without a pair the answer "
        "is math.nan.",
        "for s, g in zip(scores, good): for a in the scores with g true: for b in those with g false: pairs += 1; "
        "wrong += 1 if b > a else 0.5 if b == a else 0",
    ),
    mistakes=(
        Mistake(ranked_right, "this is the share that is ranked right"),
        Mistake(
            ties_are_right, "equal scores are counted as right; a metric that always says the same would be perfect"
        ),
        Mistake(ties_are_wrong, "equal scores are counted as wrong; a coin would get half of them right"),
        Mistake(
            over_prompts,
            "replies to different prompts are compared; one prompt is harder than another, whatever the replies",
        ),
        Mistake(prompts_alike, "every prompt counts the same; it is every pair that should: divide once, at the end"),
        Mistake(best_against_best, "only the best good and the best bad reply of a prompt are compared; compare all"),
        Mistake(zero_without_pairs, "without a single pair nothing was ranked, neither well nor badly: math.nan"),
    ),
)

# ---------------------------------------------------------------- times_each


def times_each(sizes, exponent):
    largest = max(sizes.values())
    return {name: (largest / size) ** (1 - exponent) for name, size in sizes.items()}


def exponent_the_other_way(sizes, exponent):
    return times_each(sizes, 1 - exponent)


def shares_of_the_data(sizes, exponent):
    total = sum(size**exponent for size in sizes.values())
    return {name: size**exponent / total for name, size in sizes.items()}


def extra_copies(sizes, exponent):
    return {name: times - 1 for name, times in times_each(sizes, exponent).items()}


def of_the_mean(sizes, exponent):
    mean = fmean(sizes.values())
    return {name: (mean / size) ** (1 - exponent) for name, size in sizes.items()}


def upside_down(sizes, exponent):
    return {name: 1 / times for name, times in times_each(sizes, exponent).items()}


def equal_whatever(sizes, exponent):
    return times_each(sizes, 0.0)


def whole_numbers(sizes, exponent):
    return {name: float(round(times)) for name, times in times_each(sizes, exponent).items()}


TIMES_EACH = Exercise(
    times_each,
    difficulty="easy",
    minutes=10,
    cases=(
        Case({"sizes": {"pet": 10, "event": 1000}, "exponent": 0.0}, "exponent 0: all classes equally large"),
        Case({"sizes": {"pet": 10, "event": 1000}, "exponent": 1.0}, "exponent 1: everything stays as it is"),
        Case({"sizes": {"pet": 4, "music": 16, "event": 64}, "exponent": 0.5}, "classes share the data as 2 : 4 : 8"),
        Case({"sizes": {"pet": 3, "event": 8}, "exponent": 0.2}, "not a whole number: a lot decides the rest"),
    ),
    hints=(
        "If each example of a class of n stands t(n) times, the class has n · t(n). That should be as n^exponent, and "
        "t should be 1 for the largest class.",
        "n · t(n) = c · n^exponent, so t(n) = c · n^(exponent - 1). The largest class fixes c.",
        "{name: (largest / size) ** (1 - exponent) for name, size in sizes.items()}",
    ),
    mistakes=(
        Mistake(exponent_the_other_way, "the exponent works the other way round here: 1 should leave all as it is"),
        Mistake(shares_of_the_data, "these are the classes' shares afterwards; asked is how often each example stands"),
        Mistake(extra_copies, "these are the copies to add; the example itself stands once already"),
        Mistake(
            of_the_mean, "measured by the mean class, examples of the largest stand less than once: nothing may go"
        ),
        Mistake(upside_down, "upside down: it is the rare ones that should stand more often"),
        Mistake(equal_whatever, "the exponent is not used: this makes all classes equally large"),
        Mistake(whole_numbers, "rounded: 2.67 times is right, on average, when a lot decides about the last third"),
    ),
)

EXERCISES = (ALPHA_BY_PAIRS, MISRANKED, TIMES_EACH)
