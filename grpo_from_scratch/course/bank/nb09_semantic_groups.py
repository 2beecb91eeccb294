"""Exercises of 09_semantic_groups: a round of KMeans, ids that stay, and the bias of cluster baselines."""

import torch
from scipy.optimize import linear_sum_assignment

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake


def double(values):
    return torch.tensor(values, dtype=torch.float64)


# ---------------------------------------------------------------- kmeans_round


def kmeans_round(points, centres):
    labels = torch.cdist(points, centres).argmin(1)
    moved = centres.clone()
    for c in range(len(centres)):
        if (labels == c).any():
            moved[c] = points[labels == c].mean(0)
    return labels, moved


def divides_by_zero(points, centres):
    labels = torch.cdist(points, centres).argmin(1)
    return labels, torch.stack([points[labels == c].mean(0) for c in range(len(centres))])


def empty_goes_to_zero(points, centres):
    labels, moved = kmeans_round(points, centres)
    lonely = torch.bincount(labels, minlength=len(centres)) == 0
    return labels, torch.where(lonely[:, None], 0.0, moved)


def drops_the_empty(points, centres):
    labels, moved = kmeans_round(points, centres)
    return labels, moved[labels.unique()]


def farthest(points, centres):
    labels = torch.cdist(points, centres).argmax(1)
    present = {c: points[labels == c].mean(0) for c in labels.unique().tolist()}
    return labels, torch.stack([present.get(c, centres[c]) for c in range(len(centres))])


def nearest_point_of_each_centre(points, centres):
    return torch.cdist(points, centres).argmin(0), kmeans_round(points, centres)[1]


def labels_after_the_move(points, centres):
    _, moved = kmeans_round(points, centres)
    return torch.cdist(points, moved).argmin(1), moved


def does_not_move(points, centres):
    return kmeans_round(points, centres)[0], centres


def mean_of_coordinates(points, centres):
    labels, moved = kmeans_round(points, centres)
    for c in labels.unique():
        moved[c] = points[labels == c].mean()
    return labels, moved


def along_the_axes(points, centres):
    labels = torch.cdist(points, centres, p=1).argmin(1)
    present = {c: points[labels == c].mean(0) for c in labels.unique().tolist()}
    return labels, torch.stack([present.get(c, centres[c]) for c in range(len(centres))])


def moves_in_place(points, centres):
    labels, moved = kmeans_round(points, centres)
    centres.copy_(moved)
    return labels, centres


KMEANS_ROUND = Exercise(
    kmeans_round,
    difficulty="easy",
    minutes=15,
    cases=(
        Case(
            {"points": double([[0, 0], [0, 2], [4, 0], [4, 2]]), "centres": double([[0, 0], [3, 0]])},
            "four corners of a rectangle and two centres at the bottom: both move up to the middle",
        ),
        Case(
            {"points": double([[0], [1], [2], [3], [10]]), "centres": double([[1], [4]])},
            "one dimension; after the move the point 3 would change its group, but that is the next round",
        ),
        Case(
            {"points": double([[0, 0], [1, 0], [5, 5]]), "centres": double([[0, 0], [9, -9], [5, 4]])},
            "nothing is nearest to the second centre: it stays where it is",
        ),
        Case(
            {"points": double([[0, 0], [3, 4], [6, 0]]), "centres": double([[3, 3], [5, 0]])},
            "the origin is 4.24 from the first centre and 5 from the second",
        ),
    ),
    hints=(
        "torch.cdist(points, centres) is the table (N, k) of all distances. Which centre is nearest to each point?",
        "labels = torch.cdist(points, centres).argmin(1). Then begin with a copy of the centres, and overwrite each "
        "one that has points with their mean.",
        "moved = centres.clone(); for c in range(len(centres)): if (labels == c).any(): moved[c] = points[labels == "
        "c].mean(0)",
    ),
    mistakes=(
        Mistake(
            divides_by_zero,
            "the mean of no points is NaN: a centre without points has to stay where it is",
        ),
        Mistake(empty_goes_to_zero, "a centre without points moved to the origin: it has to stay where it is"),
        Mistake(drops_the_empty, "a centre without points is gone: return as many centres as came in"),
        Mistake(farthest, "the points joined the centre that is furthest from them: argmin, not argmax"),
        Mistake(
            nearest_point_of_each_centre,
            "this is the nearest point of each centre; each point wants its nearest centre: the other dimension",
        ),
        Mistake(
            labels_after_the_move,
            "the labels are those by the centres after the move; return those that moved them, by the centres as given",
        ),
        Mistake(does_not_move, "the centres did not move: each one goes to the mean of its points"),
        Mistake(
            mean_of_coordinates, "the mean runs over the coordinates as well: it has one of its own for each, mean(0)"
        ),
        Mistake(
            along_the_axes,
            "distances are summed coordinate by coordinate; KMeans wants the straight line, torch.cdist as it is",
        ),
        Mistake(moves_in_place, "the centres that came in were changed: work on centres.clone()"),
    ),
)

# ---------------------------------------------------------------- stable_ids


def stable_ids(centres, remembered, ids):
    costs = torch.cdist(centres, remembered)  # (new, remembered)
    _, columns = linear_sum_assignment(costs.numpy())
    return ids[torch.from_numpy(columns)]


def nearest_remembered(centres, remembered, ids):
    return ids[torch.cdist(centres, remembered).argmin(1)]


def positions(centres, remembered, ids):
    return torch.from_numpy(linear_sum_assignment(torch.cdist(centres, remembered).numpy())[1])


def as_they_come(centres, remembered, ids):
    return ids.clone()


def other_way_round(centres, remembered, ids):
    _, columns = linear_sum_assignment(torch.cdist(remembered, centres).numpy())
    return ids[torch.from_numpy(columns)]


def greedy(centres, remembered, ids):
    costs, free = torch.cdist(centres, remembered), list(range(len(ids)))
    chosen = []
    for row in costs.tolist():
        best = min(free, key=lambda column: row[column])
        free.remove(best)
        chosen.append(best)
    return ids[torch.tensor(chosen)]


def refit(centres, remembered, ids):
    return {"centres": double(centres), "remembered": double(remembered), "ids": torch.tensor(ids)}


STABLE_IDS = Exercise(
    stable_ids,
    difficulty="medium",
    minutes=15,
    cases=(
        Case(
            refit([[5.1, 5], [0.2, 0], [0, 4.9]], [[0, 0], [5, 5], [0, 5]], [0, 1, 2]),
            "the same three groups in another order",
        ),
        Case(
            refit([[9, 0], [0, 0], [0, 9]], [[0, 0], [0, 9], [9, 0]], [7, 2, 4]),
            "ids are names, not positions; and three groups in a circle, so that there and back are not the same",
        ),
        Case(
            refit([[1.0], [2.0], [20.0]], [[0.0], [10.0], [21.0]], [0, 1, 2]),
            "two new centres are nearest to the same old one, and one of them has to take another",
        ),
        Case(
            refit([[4.0], [0.0]], [[3.0], [9.0]], [0, 1]),
            "who chooses first makes the other pay: 1 + 9 in all, where 5 + 3 is possible",
        ),
    ),
    hints=(
        "Costs first: the table of distances between every new centre (rows) and every remembered one (columns).",
        "rows, columns = linear_sum_assignment(torch.cdist(centres, remembered).numpy()); the rows come back in order, "
        "and columns[i] is the remembered centre that the new centre i continues.",
        "ids[torch.from_numpy(columns)]",
    ),
    mistakes=(
        Mistake(
            nearest_remembered,
            "each new centre took the nearest old one, so that one id went to two groups and another to none: each old "
            "id once, by linear_sum_assignment",
        ),
        Mistake(positions, "these are positions among the remembered centres; their ids are ids[...] of them"),
        Mistake(as_they_come, "the ids were given in the order in which KMeans happens to number: match the centres"),
        Mistake(
            other_way_round,
            "this says which new centre each old one goes to; wanted is which old one each new centre continues: new "
            "centres are the rows",
        ),
        Mistake(
            greedy,
            "the new centres chose one after the other, and the last had to take what was left: the sum of all "
            "distances is to be smallest, by linear_sum_assignment",
        ),
    ),
)

# ---------------------------------------------------------------- cluster_bias


def by_logits(probabilities, advantages):
    return probabilities * (advantages - (probabilities * advantages).sum())


def cluster_means(probabilities, rewards, clusters):
    """(K,) E[reward | cluster] of each reply's cluster."""
    together = (clusters[:, None] == clusters[None, :]).to(probabilities)  # (K, K)
    return together @ (probabilities * rewards) / (together @ probabilities)


def cluster_bias(probabilities, rewards, clusters):
    true = by_logits(probabilities, rewards)
    found = by_logits(probabilities, rewards - cluster_means(probabilities, rewards, clusters))
    return (found - true).norm() / true.norm()


def plain_means(probabilities, rewards, clusters):
    true = by_logits(probabilities, rewards)
    means = cluster_means(torch.ones_like(probabilities), rewards, clusters)
    return (by_logits(probabilities, rewards - means) - true).norm() / true.norm()


def not_conditional(probabilities, rewards, clusters):
    true = by_logits(probabilities, rewards)
    together = (clusters[:, None] == clusters[None, :]).to(probabilities)
    return (by_logits(probabilities, rewards - together @ (probabilities * rewards)) - true).norm() / true.norm()


def over_the_biased(probabilities, rewards, clusters):
    true = by_logits(probabilities, rewards)
    found = by_logits(probabilities, rewards - cluster_means(probabilities, rewards, clusters))
    return (found - true).norm() / found.norm()


def not_relative(probabilities, rewards, clusters):
    true = by_logits(probabilities, rewards)
    return cluster_bias(probabilities, rewards, clusters) * true.norm()


def difference_of_lengths(probabilities, rewards, clusters):
    true = by_logits(probabilities, rewards)
    found = by_logits(probabilities, rewards - cluster_means(probabilities, rewards, clusters))
    return (true.norm() - found.norm()) / true.norm()


def what_is_left(probabilities, rewards, clusters):
    true = by_logits(probabilities, rewards)
    found = by_logits(probabilities, rewards - cluster_means(probabilities, rewards, clusters))
    return found.norm() / true.norm()


def not_centred(probabilities, rewards, clusters):
    off = probabilities * cluster_means(probabilities, rewards, clusters)
    return off.norm() / (probabilities * rewards).norm()


def without_probabilities(probabilities, rewards, clusters):
    off = cluster_means(probabilities, rewards, clusters)
    off = off - (probabilities * off).sum()
    return off.norm() / (rewards - (probabilities * rewards).sum()).norm()


def bandit(probabilities, rewards, clusters):
    return {"probabilities": double(probabilities), "rewards": double(rewards), "clusters": torch.tensor(clusters)}


CLUSTER_BIAS = Exercise(
    cluster_bias,
    difficulty="medium",
    minutes=20,
    cases=(
        Case(
            bandit([0.4, 0.1, 0.3, 0.2], [0.3, 0.9, 0.1, 0.5], [0, 1, 0, 1]),
            "two clusters of two: 0.34 / 0.4 and 0.19 / 0.3 are what the baselines settle at",
        ),
        Case(
            bandit([0.5, 0.3, 0.2], [1.0, 0.2, 0.4], [4, 4, 4]),
            "one cluster, whatever its id: unbiased, 0",
        ),
        Case(
            bandit([0.25, 0.35, 0.1, 0.3], [0.0, 1.0, 0.5, 0.2], [2, 0, 1, 3]),
            "each reply alone in its cluster: nothing is left of the gradient, 1",
        ),
        Case(
            bandit([0.1, 0.2, 0.3, 0.15, 0.25], [0.8, 0.1, 0.6, 0.3, 0.4], [1, 1, 0, 0, 1]),
            "clusters of two and three, sorted by nothing",
        ),
    ),
    hints=(
        "Three steps: b of each reply's cluster, E[reward | cluster]; the two gradients, with A = reward and with A = "
        "reward - b; the length of their difference over the length of the first.",
        "E[reward | cluster] weighs by probability: of the cluster's rows, sum(probabilities * rewards) over "
        "sum(probabilities). A loop over clusters.unique() that fills b is fine.",
        "b = torch.zeros_like(rewards); for c in clusters.unique(): rows = clusters == c; b[rows] = "
        "(probabilities[rows] * rewards[rows]).sum() / probabilities[rows].sum(). Then, with g(A) = probabilities * "
        "(A - (probabilities * A).sum()): (g(rewards - b) - g(rewards)).norm() / g(rewards).norm()",
    ),
    mistakes=(
        Mistake(
            plain_means,
            "the baseline is the plain mean of the cluster's rewards; replies are not equally likely, so weigh them by "
            "their probabilities",
        ),
        Mistake(
            not_conditional,
            "sum(probabilities * rewards) of a cluster is not yet E[reward | cluster]: divide by the cluster's "
            "probability",
        ),
        Mistake(over_the_biased, "divided by the length of the biased gradient; relative to the true one is asked"),
        Mistake(not_relative, "this is the length of the difference; divide it by the length of the true gradient"),
        Mistake(
            difference_of_lengths,
            "this compares the lengths of the two gradients; their directions differ too, so take the length of the "
            "difference",
        ),
        Mistake(what_is_left, "this is how long the biased gradient is; wanted is how far it is from the true one"),
        Mistake(not_centred, "the gradient by the logits is p * (A - sum(p * A)); the second term is missing"),
        Mistake(without_probabilities, "the gradient by the logits is p * (A - sum(p * A)); the factor p is missing"),
    ),
)

EXERCISES = (KMEANS_ROUND, STABLE_IDS, CLUSTER_BIAS)
