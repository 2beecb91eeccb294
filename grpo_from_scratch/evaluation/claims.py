"""The article's claims, and in plain words what the measurements say about them."""

import math
from collections.abc import Mapping

from grpo_from_scratch.evaluation.intervals import Interval

ARTICLE, NAMESAKE = "cluster_ema", "grpo"  # what the article describes, and what the name means
CLAIMS = (("sample_efficiency", 1.0, 1.8), ("stability", 0.72, 0.89), ("bleu", 0.32, 0.38))  # metric, PPO, GRPO
UNDEFINED_BY_SOURCE = {"stability"}  # the article gives numbers and no definition
NOT_MEASURED = "not measured"
NO_GAIN = "not comparable: PPO gained nothing here"


def side_verdict(metric: str, measured: Interval, claimed: float) -> str:
    """Reproduced: the interval lies above "no change" and reaches what is claimed. Otherwise what stands against it."""
    if metric in UNDEFINED_BY_SOURCE:
        return "not comparable: the source does not define it"
    if math.isnan(measured.value):
        return NOT_MEASURED
    if math.isnan(measured.low):
        return "not reproduced: too few runs for an interval"
    if measured.low > 1:
        return "reproduced" if measured.high >= claimed else "not reproduced: a smaller gain"
    if measured.high >= claimed:
        return "not reproduced: too few runs to tell"
    if measured.bound:
        return "not reproduced: never got there"
    return "not reproduced: " + ("the opposite" if measured.high < 1 else "no clear gain")


def joint_verdict(sides: Mapping[tuple[str, str], str]) -> str:
    """One verdict for (algorithm, data) -> side verdicts, in the shortest words that say where the claim held."""
    measured = {where: verdict for where, verdict in sides.items() if verdict != NOT_MEASURED}
    if len(set(measured.values())) <= 1:
        return next(iter(measured.values()), NOT_MEASURED)
    held = [where for where, verdict in measured.items() if verdict == "reproduced"]
    if not held:
        return "not reproduced"
    for part, words in enumerate(("the algorithm is", "the data is")):
        values = sorted({where[part] for where in held})
        if set(held) == {where for where in measured if where[part] in values}:
            return f"only when {words} {' or '.join(values)}"
    return "only when " + " or ".join(f"{algorithm} trains on {data}" for algorithm, data in held)
