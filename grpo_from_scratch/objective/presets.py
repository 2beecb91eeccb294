"""An algorithm as data: who is compared, with what, on which scale, and which surrogate makes a gradient of it."""

import difflib
from dataclasses import dataclass

from grpo_from_scratch.objective.baselines import EMA_INITS
from grpo_from_scratch.objective.fields import check_types
from grpo_from_scratch.objective.groups import group_range

_CHOICES = {
    "groups": ("prompt", "batch", "semantic"),
    "baseline": ("mean", "leave_one_out", "ema", "critic", "none"),
    "ema_init": EMA_INITS,
    "scale": ("group", "batch", "none"),
    "surrogate": ("clip", "cispo", "sapo", "reinforce"),
    "level": ("token", "sequence"),
    "aggregate": ("sequence", "token", "constant"),
    "kl_estimator": ("k1", "k2", "k3", "k3_weighted"),
    "kl_in": ("loss", "reward"),
}


@dataclass(frozen=True)
class Preset:
    """One algorithm. ``dataclasses.replace`` makes a variant, and refuses what does not fit together (ValueError)."""

    source: str = ""  # the paper and the equation it comes from

    # Who is compared, with what, on which scale.
    groups: str = "prompt"  # the completions of one prompt | all of a batch | those that KMeans puts together
    num_groups: int | tuple[int, int] = 3  # semantic groups; (low, high) lets the silhouette choose
    baseline: str = "mean"
    alpha: float = 0.95  # weight of the EMA's old value
    ema_init: str = "group_first"
    scale: str = "group"  # divide by the std of the group | of the batch (a critic's advantages: whiten) | not at all

    # How an advantage becomes a gradient.
    surrogate: str = "clip"
    level: str = "token"  # one ratio for each token | one for each sequence, the geometric mean of its tokens'
    clip_low: float = 0.2  # the ratio's lower bound is 1 − clip_low; CISPO has none
    clip_high: float = 0.2  # its upper bound is 1 + clip_high
    tau_pos: float = 1.0  # SAPO's temperatures, for positive advantages
    tau_neg: float = 1.05  # and for the others
    aggregate: str = "sequence"  # mean of sequence means | sum / tokens | sum / (sequences × max_new_tokens)
    passes: int = 1  # µ, the updates made with one batch of completions

    # What holds the policy near the reference.
    kl_coef: float = 0.0  # β
    kl_estimator: str = "k3"
    kl_in: str = "loss"

    # Only with a critic: generalised advantage estimation.
    gamma: float = 1.0
    lam: float = 0.95

    # What is done to the completions before they are compared.
    dynamic_sampling: bool = False  # sample groups without signal again
    overlong_penalty: float = 0.0  # share of max_new_tokens over which the length penalty grows; 0: no penalty

    def __post_init__(self):
        check_types(self)
        for field, choices in _CHOICES.items():
            if getattr(self, field) not in choices:
                raise ValueError(f"{field} must be one of {', '.join(choices)}, not {getattr(self, field)!r}")
        group_range(self.num_groups)
        if isinstance(self.num_groups, list):  # as JSON gives a pair back
            object.__setattr__(self, "num_groups", tuple(self.num_groups))
        for field, low, high in (("alpha", 0, 1), ("gamma", 0, 1), ("lam", 0, 1), ("overlong_penalty", 0, 1)):
            if not low <= getattr(self, field) <= high:
                raise ValueError(f"{field} must be within [{low}, {high}], but is {getattr(self, field)}")
        for field in ("clip_low", "clip_high", "kl_coef"):
            if not getattr(self, field) >= 0:
                raise ValueError(f"{field} must not be negative, but is {getattr(self, field)}")
        for field in ("tau_pos", "tau_neg", "passes"):
            if not getattr(self, field) > 0:
                raise ValueError(f"{field} must be positive, but is {getattr(self, field)}")
        for illegal, sentence in self._contradictions():
            if illegal:
                raise ValueError(sentence)

    def _contradictions(self):
        in_loss = self.kl_coef > 0 and self.kl_in == "loss"
        return (
            (
                self.baseline == "ema" and self.groups == "prompt",
                "an EMA is kept by group, and a batch's prompts do not come back: with baseline 'ema' set groups to "
                "'semantic' or 'batch'",
            ),
            (
                self.baseline == "critic" and self.scale == "group",
                "a critic compares each token with its own value, not with a group: set scale to 'batch' or 'none'",
            ),
            (
                self.dynamic_sampling and (self.groups != "prompt" or self.baseline not in ("mean", "leave_one_out")),
                "dynamic sampling replaces prompts whose completions all score the same: it needs groups 'prompt' and "
                "baseline 'mean' or 'leave_one_out'",
            ),
            (
                self.level == "sequence" and self.surrogate != "clip",
                f"level 'sequence' is a ratio for surrogate 'clip', not for {self.surrogate!r}",
            ),
            (
                self.surrogate == "reinforce" and self.passes > 1,
                "'reinforce' has no ratio to correct for an older sampler: set passes to 1 or take another surrogate",
            ),
            (
                in_loss and self.kl_estimator == "k1",
                "k1 in the loss has an expected gradient of 0: set kl_estimator to 'k2', 'k3' or 'k3_weighted', or "
                "kl_in to 'reward'",
            ),
            (
                self.kl_in == "reward" and self.kl_estimator != "k1",
                "a KL in the reward is k1, whose sum over tokens is unbiased: set kl_estimator to 'k1'",
            ),
        )


PRESETS: dict[str, Preset] = {
    "grpo": Preset(
        source="DeepSeekMath, Shao et al. 2024, arXiv 2402.03300, eq. 3 (objective) and 4 (KL)",
        kl_coef=0.04,
    ),
    # No division by the std, which reweights prompts, nor by the sampled length, which favours long wrong answers.
    "dr_grpo": Preset(
        source="Dr. GRPO, Liu et al. 2025, arXiv 2503.20783, section 3.2",
        scale="none",
        aggregate="constant",
    ),
    "rloo": Preset(
        source="RLOO, Kool et al. 2019; Ahmadian et al. 2024, arXiv 2402.14740: the REINFORCE leave-one-out estimator",
        baseline="leave_one_out",
        scale="none",
        surrogate="reinforce",
        aggregate="constant",
        kl_coef=0.05,
        kl_estimator="k1",
        kl_in="reward",
    ),
    # The penalty's buffer is 4096 of 20480 tokens in the paper.
    "dapo": Preset(
        source="DAPO, Yu et al. 2025, arXiv 2503.14476, eq. 8 (objective) and 13 (overlong penalty)",
        clip_low=0.2,
        clip_high=0.28,
        aggregate="token",
        dynamic_sampling=True,
        overlong_penalty=0.2,
    ),
    "gspo": Preset(
        source="GSPO, Zheng et al. 2025, arXiv 2507.18071, eq. 5 (objective) and 7 (ratio)",
        level="sequence",
        clip_low=3e-4,
        clip_high=4e-4,
    ),
    "cispo": Preset(
        source="CISPO, MiniMax-M1 2025, arXiv 2506.13585, eq. 4 and 5",
        surrogate="cispo",
        clip_high=4.0,
        aggregate="token",
    ),
    "sapo": Preset(
        source="SAPO, Gao et al. 2025, arXiv 2511.20347, section 3",
        surrogate="sapo",
    ),
    "ppo": Preset(
        source="PPO, Schulman et al. 2017, arXiv 1707.06347, eq. 7; GAE, arXiv 1506.02438, eq. 16; KL in the reward, "
        "Ziegler et al. 2019, arXiv 1909.08593, eq. 2",
        baseline="critic",
        scale="batch",
        aggregate="token",
        passes=4,
        kl_coef=0.05,
        kl_estimator="k1",
        kl_in="reward",
    ),
    # The article: ∇J ≈ E[Σ_g (Q(s, a_g) − b_g) ∇log π(a_g|s)], b_g ← α·b_g + (1−α)·Q(s, a_g). It fixes no start of b.
    "cluster_ema": Preset(
        source="the article this course follows: semantic groups by KMeans, a moving average for each",
        groups="semantic",
        baseline="ema",
        scale="none",
        surrogate="reinforce",
        aggregate="constant",
    ),
}
ALIASES = {"article": "cluster_ema"}


def get_preset(preset: str | Preset) -> Preset:
    """The preset of this name or alias; a ``Preset`` is returned as it is.

    Raises:
        ValueError: no preset has this name; the message gives the nearest one and all of them.
    """
    if isinstance(preset, Preset):
        return preset
    if not isinstance(preset, str):
        raise ValueError(f"preset takes a name or a Preset, not a {type(preset).__name__}")
    name = ALIASES.get(preset, preset)
    if name not in PRESETS:
        known = [*PRESETS, *ALIASES]
        nearest = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0)[0]
        raise ValueError(f"there is no preset {preset!r}; nearest is {nearest!r}, all are {', '.join(known)}")
    return PRESETS[name]
