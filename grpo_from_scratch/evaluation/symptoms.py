"""What to look at in a run, and where it stays in a healthy one: the table behind ``grpo diagnose``.

The first instruments have a value that any correct program gives, so a single step is enough to judge; the others are
symptoms, and want a few.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from grpo_from_scratch.evaluation.run_folder import Run, is_number
from grpo_from_scratch.training.config import TrainConfig

FEW = 6  # steps that a symptom needs: with fewer, a half has no mean to speak of


@dataclass(frozen=True)
class Instrument:
    """One thing to look at."""

    name: str
    columns: tuple[str, ...]  # of metrics.jsonl
    read: Callable[[Run], float]  # NaN: there is nothing to measure it on
    low: float  # a healthy run's value is within [low, high]
    high: float
    sick: str  # what a value outside says, with {value}
    advice: str
    notebook: str
    section: str
    exempt: Callable[[TrainConfig], str] = lambda config: ""  # why a run with this config cannot be judged by it
    least: int = 1  # steps

    @property
    def healthy(self) -> str:
        if self.low == self.high:
            return f"{self.low:g}"
        if math.isinf(self.high):
            return f"at least {self.low:g}"
        if math.isinf(self.low):
            return f"at most {self.high:g}"
        return f"{self.low:g} to {self.high:g}"

    @property
    def chapter(self) -> str:
        return f"notebook {self.notebook[:2]}, “{self.section}”"


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def halves(values: list[float]) -> tuple[list[float], list[float]]:
    return values[: len(values) // 2], values[len(values) // 2 :]


# ---------------------------------------------------------------- what can be judged of which run


def compares_answers(config: TrainConfig) -> bool:
    """The answers to one prompt are compared with each other."""
    return config.preset.groups == "prompt" and config.preset.baseline in ("mean", "leave_one_out")


def no_prompt_groups(config: TrainConfig) -> str:
    return "" if compares_answers(config) else "its baseline is not the other answers to the same prompt"


def scaled(config: TrainConfig) -> str:
    divided = "" if config.preset.scale == "none" else "advantages are divided by a std"
    return no_prompt_groups(config) or divided


def cut_distribution(config: TrainConfig) -> str:
    cut = config.top_p < 1 or config.top_k > 0
    return "top-p or top-k makes the sampler record another distribution" if cut else ""


def no_ratio(config: TrainConfig) -> str:
    if config.preset.surrogate != "clip":
        return "there is no clip"
    return "" if config.preset.passes * config.minibatches > 1 else "one update a step: the ratio is 1"


def no_kl_in_the_loss(config: TrainConfig) -> str:
    return "" if config.preset.kl_coef > 0 and config.preset.kl_in == "loss" else "there is no KL in the loss"


def no_reference(config: TrainConfig) -> str:
    return "" if config.preset.kl_coef > 0 else "there is no KL to a reference"


def no_critic(config: TrainConfig) -> str:
    return "" if config.uses_critic else "there is no critic"


# ---------------------------------------------------------------- symptoms read off several columns


# Nats a token, above what float32 (1e-6) and bf16 (.005) give; a temperature of .7 left out gives .06.
ROUNDING = {"fp32": 1e-3, "bf16": 0.02, "fp16": 0.02}


def gap_over_rounding(run: Run) -> float:
    return max(run.column("sampler_gap")) / ROUNDING[run.config.precision]


def slope_over_expected(run: Run) -> float:
    """Steps with a missing reward are left out: there G is not the same for all."""
    size = run.config.group_size
    expected = 1.0 if run.config.preset.baseline == "mean" else size / (size - 1)
    whole = [row["advantage_slope"] for row in run.steps if row.get("reward_missing") == 0]
    return mean([value for value in whole if is_number(value)]) / expected


def k3_over_k1(run: Run) -> float:
    """Of means over the run, since k1 of one step may be negative; NaN while the policy is still at the reference."""
    k1, k3 = (mean(run.column(name)) for name in ("kl_k1_first", "kl_k3_first"))
    return k3 / k1 if k1 > 0.03 else math.nan


def quieter_half(name: str) -> Callable[[Run], float]:
    """The mean of the half in which it is lower: a run that has solved its task shows the same at its end."""
    return lambda run: min(map(mean, halves(run.column(name))))


def steps_without_gradient(run: Run) -> float:
    """Their share in the half with fewer of them; a gradient that overflowed is logged as null."""
    moved = [float(is_number(row["grad_norm"]) and row["grad_norm"] > 0) for row in run.steps]
    return 1 - max(map(mean, halves(moved)))


def entropy_growth(run: Run) -> float:
    """Of the last quarter over the first step, in nats."""
    entropy = run.column("entropy")
    return mean(entropy[-max(1, len(entropy) // 4) :]) - entropy[0]


def heldout_gain(run: Run) -> float:
    """Last minus first held-out reward, in standard errors of a difference of two evaluations. The data may hold fewer
    replies out than the config asks for."""
    judged = [row for row in run.rows if is_number(row.get("eval_reward"))]
    if len(judged) < 2:
        return math.nan
    error = mean(run.column("reward_std")) * math.sqrt(2 / judged[-1].get("eval_replies", run.config.eval_prompts))
    return (judged[-1]["eval_reward"] - judged[0]["eval_reward"]) / error if error > 0 else math.nan


# ---------------------------------------------------------------- the instruments

INSTRUMENTS = (
    # Exact: what any correct program gives, up to rounding.
    Instrument(
        name="log-probs of updates against the sampler's, over rounding",
        columns=("sampler_gap",),
        read=gap_over_rounding,
        low=0.0,
        high=1.0,
        sick="before any update a token's log-prob is not the one it was sampled with, {value:.0f} times as far off as "
        "rounding explains: the first ratio is not 1",
        advice="score at the sampler's temperature, without dropout, from the logits one place before the token",
        notebook="04_tokens",
        section="The temperature belongs in the log-probs",
        exempt=cut_distribution,
    ),
    Instrument(
        name="ends of replies in the loss",
        columns=("ends_trained",),
        read=lambda run: min(run.column("ends_trained")),
        low=1.0,
        high=1.0,
        sick="the loss sees the end of only {value:.0%} of the replies that ended: nothing teaches the policy to stop",
        advice="make the mask by position, with the first end-of-sequence token; ids != pad drops it where pad is eos",
        notebook="04_tokens",
        section="Which tokens count?",
    ),
    Instrument(
        name="advantages of a prompt's replies add up to 0",
        columns=("advantage_by_prompt",),
        read=lambda run: max(run.column("advantage_by_prompt")),
        low=0.0,
        high=1e-3,
        sick="prompts as a whole have an advantage, {value:.2f} of its size: replies are compared across prompts",
        advice="group by the prompt's id, never by position; look at whatever shuffles, filters or splits the batch",
        notebook="03_group_relative",
        section="Trap 1: whose rewards are these?",
        exempt=no_prompt_groups,
    ),
    Instrument(
        name="advantage for a point of reward, over the expected",
        columns=("advantage_slope",),
        read=slope_over_expected,
        low=0.999,
        high=1.001,
        sick="an advantage rises {value:.3f} times as much with its own reward as it should: the baseline contains the "
        "reward it judges, or advantages are scaled where they should not be",
        advice="leave the reward itself out of the mean; update a moving average after it was used",
        notebook="02_baselines",
        section="Leave yourself out",
        exempt=scaled,
    ),
    Instrument(
        name="gradient on tokens that the clip silences",
        columns=("silenced_push",),
        read=lambda run: mean(run.column("silenced_push")),
        low=0.0,
        high=1e-3,
        sick="{value:.1%} of the surrogate's gradient falls on tokens that the clip should silence",
        advice="take the minimum of ratio·A and clip(ratio)·A for both signs of A; check the bounds",
        notebook="05_clip_and_kl",
        section="Why clip?",
        exempt=no_ratio,
    ),
    Instrument(
        name="KL gradient that leads away from the reference",
        columns=("kl_away",),
        read=lambda run: mean(run.column("kl_away")),
        low=0.0,
        high=1e-3,
        sick="{value:.0%} of the KL's gradient drives tokens further from the reference, so it holds nothing",
        advice="k1 is a value, not a loss: use k3 or k2 in the loss, or put k1 into the reward",
        notebook="05_clip_and_kl",
        section="As gradients",
        exempt=no_kl_in_the_loss,
    ),
    # Symptoms. The bounds leave room around what 40 healthy runs showed (the nine presets on the dialogues, from the
    # fine-tuned policy, and on sort_digits, from random weights; 2 to 3 seeds, 12 and 20 steps): two KLs .91 to 1.14,
    # without signal at most .26, clipped at most .13, entropy +.02, gain at least +1.1, explained at least −.01.
    Instrument(
        name="KL two ways, k3 / k1",
        columns=("kl_k1_first", "kl_k3_first"),
        read=k3_over_k1,
        low=0.6,
        high=1.6,
        sick="two estimates of the same KL disagree, k3 is {value:.2f} times k1",
        advice="k3 wants log(reference/policy): with the log-ratio turned round it explodes where the policy rose",
        notebook="05_clip_and_kl",
        section="As values",
        exempt=no_reference,
        least=FEW,
    ),
    Instrument(
        name="groups without signal",
        columns=("groups_without_signal",),
        read=quieter_half("groups_without_signal"),
        low=0.0,
        high=0.5,
        sick="{value:.0%} of the groups have equal rewards and teach nothing",
        advice="sample hotter, take prompts of middling difficulty, larger groups, or a finer reward",
        notebook="03_group_relative",
        section="How often does a group teach nothing?",
        exempt=no_prompt_groups,
        least=FEW,
    ),
    Instrument(
        name="steps without a gradient",
        columns=(),
        read=steps_without_gradient,
        low=0.0,
        high=0.5,
        sick="{value:.0%} of the steps moved nothing: their gradient is 0 or overflowed",
        advice="look at groups without signal, missing rewards, the mask, and in fp16 at updates_skipped",
        notebook="03_group_relative",
        section="Trap 3: when all rewards are equal",
        least=FEW,
    ),
    Instrument(
        name="missing rewards",
        columns=("reward_missing",),
        read=lambda run: mean(run.column("reward_missing")),
        low=0.0,
        high=0.1,
        sick="{value:.0%} of the replies got no reward, and train nothing",
        advice="mend the reward function; do not give 0 for no answer, which teaches that such replies are bad",
        notebook="03_group_relative",
        section="What would break this?",
        least=1,
    ),
    Instrument(
        name="tokens that the clip silences",
        columns=("clip_fraction_low", "clip_fraction_high"),
        read=lambda run: mean(run.column("clip_fraction_low")) + mean(run.column("clip_fraction_high")),
        low=0.0,
        high=0.3,
        sick="the clip silences {value:.0%} of the tokens: updates go further than the samples can vouch for",
        advice="lower the learning rate, or make fewer passes over a batch",
        notebook="07_train_grpo",
        section="From 3e-5 to a thousandth",
        exempt=lambda c: no_ratio(c) or ("GSPO silences about half by design" if c.preset.level == "sequence" else ""),
        least=FEW,
    ),
    Instrument(
        name="growth of the entropy, nats a token",
        columns=("entropy",),
        read=entropy_growth,
        low=-math.inf,
        high=0.7,
        sick="the entropy rose by {value:.2f} nats a token: the policy forgets how to speak",
        advice="lower the learning rate; see that the reward and its sign are what you mean",
        notebook="07_train_grpo",
        section="Four sick runs",
        least=FEW,
    ),
    Instrument(
        name="gain of the held-out reward, standard errors",
        columns=(),
        read=heldout_gain,
        low=-3.0,
        high=math.inf,
        sick="the held-out reward fell, by {value:.1f} standard errors",
        advice="try a third of the learning rate; if it still falls, look for a turned sign",
        notebook="07_train_grpo",
        section="Four sick runs",
        least=FEW,
    ),
    Instrument(
        name="what the critic explains",
        columns=("ev",),
        read=lambda run: mean(halves(run.column("ev"))[1]),
        low=-0.5,
        high=math.inf,
        sick="the critic's explained variance is {value:.2f}: its values are worse than a constant",
        advice="warm it up, train it faster or longer (critic_warmup, critic_learning_rate, critic_passes)",
        notebook="10_ppo_vs_grpo",
        section="Did the critic learn?",
        exempt=no_critic,
        least=FEW,
    ),
)
