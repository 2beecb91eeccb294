"""Exercises of 05_clip_and_kl: the clipped loss, and k3 the right way round."""

import torch

from grpo_from_scratch.course.exercises import Case, Exercise, Mistake

# ---------------------------------------------------------------- clip_loss


def clip_loss(ratio, advantages, clip):
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def max_for_min(ratio, advantages, clip):
    return -torch.maximum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def min_before_the_advantage(ratio, advantages, clip):
    return -torch.minimum(ratio, ratio.clamp(1 - clip, 1 + clip)) * advantages


def only_clipped(ratio, advantages, clip):
    return -ratio.clamp(1 - clip, 1 + clip) * advantages


def never_clipped(ratio, advantages, clip):
    return -ratio * advantages


def climbs_the_objective(ratio, advantages, clip):
    return -clip_loss(ratio, advantages, clip)


def clips_around_zero(ratio, advantages, clip):
    return -torch.minimum(ratio * advantages, ratio.clamp(-clip, clip) * advantages)


def clamps_the_product(ratio, advantages, clip):
    return -(ratio * advantages).clamp(1 - clip, 1 + clip)


def without_gradient(ratio, advantages, clip):
    return clip_loss(ratio.detach(), advantages, clip)


def averaged(ratio, advantages, clip):
    return clip_loss(ratio, advantages, clip).mean()


CLIP_LOSS = Exercise(
    clip_loss,
    difficulty="medium",
    minutes=15,
    cases=(
        Case(
            {"ratio": torch.tensor([0.5, 0.9, 1.1, 1.5, 10.0]), "advantages": torch.full((5,), 2.0), "clip": 0.2},
            "good tokens: no gradient once the ratio is above 1.2, the others are pushed up",
        ),
        Case(
            {"ratio": torch.tensor([0.5, 0.9, 1.1, 1.5, 10.0]), "advantages": -torch.ones(5), "clip": 0.2},
            "bad tokens: no gradient once the ratio is below 0.8; one at 1.5 or 10 has to come down",
        ),
        Case(
            {
                "ratio": torch.tensor([0.85, 1.15, 1.0, 0.3]),
                "advantages": torch.tensor([-0.5, 2.0, 0.0, 1.5]),
                "clip": 0.1,
            },
            "other advantages and another clip",
        ),
    ),
    hints=(
        "Two candidates a token: ratio * advantages, and the same with the ratio clamped to 1 - clip … 1 + clip",
        "These are objectives, to be maximised. Being pessimistic means to take the smaller one. Then change the sign.",
        "-torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)",
    ),
    mistakes=(
        Mistake(
            max_for_min,
            "min and max are swapped: this is the more hopeful of the two, which pushes without limit where the clip "
            "should stop it. (The minimum is for objectives; of two losses the pessimistic one is the maximum)",
        ),
        Mistake(
            min_before_the_advantage,
            "the minimum is taken before multiplying by the advantage; a negative advantage turns smaller into larger, "
            "so multiply first",
        ),
        Mistake(
            only_clipped,
            "the ratio is clipped on both sides for both signs: a token that went the wrong way gets no gradient and "
            "never comes back. Take the minimum with the plain objective",
        ),
        Mistake(never_clipped, "nothing is clipped: the gradient goes on however far the ratio is from 1"),
        Mistake(climbs_the_objective, "this is the objective; a loss, to be minimised, has the other sign"),
        Mistake(
            clips_around_zero, "the ratio is kept near 0; no change is a ratio of 1, so clamp to 1 - clip .. 1 + clip"
        ),
        Mistake(clamps_the_product, "ratio times advantage is clamped; clamp the ratio alone, then multiply"),
        Mistake(without_gradient, "the values are right, but no gradient reaches the ratio: no detach() here"),
        Mistake(averaged, "do not average here: which mean to take is another decision (notebook 04)"),
    ),
    gradients=("ratio",),
)

# ---------------------------------------------------------------- k3


def k3(logps, ref_logps):
    d = ref_logps - logps
    return torch.expm1(d) - d


def turned_round(logps, ref_logps):
    return k3(ref_logps, logps)


def without_minus_one(logps, ref_logps):
    return k3(logps, ref_logps) + 1


def without_d(logps, ref_logps):
    return torch.expm1(ref_logps - logps)


def plus_d(logps, ref_logps):
    d = ref_logps - logps
    return torch.expm1(d) + d


def is_k1(logps, ref_logps):
    return logps - ref_logps


def is_k2(logps, ref_logps):
    return (ref_logps - logps).square() / 2


def of_the_probabilities(logps, ref_logps):
    d = ref_logps.exp() / logps.exp()
    return torch.expm1(d) - d


def weighted_by_the_policy(logps, ref_logps):
    return logps.exp() * k3(logps, ref_logps)


def logs_of_logs(logps, ref_logps):
    return k3(logps.log(), ref_logps.log())


def averaged_k3(logps, ref_logps):
    return k3(logps, ref_logps).mean()


def reference_only(logps, ref_logps):
    return k3(logps.detach(), ref_logps)


K3 = Exercise(
    k3,
    difficulty="easy",
    minutes=15,
    cases=(
        Case(
            {
                "logps": torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log(),
                "ref_logps": torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).log(),
            },
            "π = (.5, .3, .2), ref = (.4, .4, .2), one token of each kind: ref/π is .8, 1.33 and 1",
        ),
        Case(
            {
                "logps": torch.tensor([[-0.1, -3.0], [-2.0, -0.5]], dtype=torch.float64),
                "ref_logps": torch.tensor([[-2.3, -0.7], [-2.0, -0.6]], dtype=torch.float64),
            },
            "two replies of two tokens, some of them far apart",
        ),
    ),
    hints=(
        "Write d first: the log of ref/π is a difference of the two log-probs. Which one minus which?",
        "d = ref_logps - logps, and then exp(d) - 1 - d. At d = 0 it is 0.",
        "torch.expm1(ref_logps - logps) - (ref_logps - logps), where expm1(d) is exp(d) - 1",
    ),
    mistakes=(
        Mistake(
            turned_round,
            "d is turned round: it is log(ref/π), ref_logps - logps. The reversed one is never negative either, but "
            "its average is not a KL",
        ),
        Mistake(without_minus_one, "the 1 is missing: where policy and reference agree, it must be 0"),
        Mistake(without_d, "this is exp(d) - 1 alone, which is 0 on average whatever the policies: - d is missing"),
        Mistake(
            plus_d,
            "exp(d) and the last term do not have the same d: it is exp(d) - 1 - d, with d = ref_logps - logps in both",
        ),
        Mistake(is_k1, "this is k1"),
        Mistake(is_k2, "this is k2"),
        Mistake(of_the_probabilities, "d is the log of ref/π; you took ref/π itself"),
        Mistake(weighted_by_the_policy, "do not multiply by π: the token was drawn from π, which weighs it already"),
        Mistake(logs_of_logs, "the inputs are log-probs already: their difference is d, without another log"),
        Mistake(averaged_k3, "do not average: the loss needs one number for each token"),
        Mistake(reference_only, "no gradient reaches logps, so the penalty would hold nothing"),
    ),
    gradients=("logps",),
)

EXERCISES = (CLIP_LOSS, K3)
