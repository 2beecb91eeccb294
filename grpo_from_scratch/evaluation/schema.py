"""What goes into the table and what comes out: the shape of a run's result and of `table.json`."""

from typing import Any, NotRequired, TypedDict


class Evaluation(TypedDict):
    """The held-out reward after ``step`` updates, and what it took to get there, critic and warm-up included."""

    step: int
    completions: int
    cpu_seconds: float
    reward: float


class RunResult(TypedDict):
    """One run: an algorithm on one initial policy (``sft_seed``) with one RL seed."""

    algorithm: str  # a preset's name, or "untrained" with a single evaluation
    sft_seed: int
    seed: int
    evaluations: list[Evaluation]  # the first before any update
    final: dict[str, float | None]  # bleu, bleu_greedy, rouge_l, fact_accuracy, distinct, kl, …; None: not defined here
    icc: list[float | None] | None  # one for each evaluation, as of the updates since the last; None: not known
    ev: list[float | None] | None  # the critic's explained variance, likewise; both None for a row without any
    cpu_seconds: float  # of the whole run, measuring included
    config: dict[str, Any]  # TrainConfig.to_dict(); read: prompts_per_step, group_size, learning_rate, preset


class IntervalJSON(TypedDict):
    """``Interval`` as JSON. null: not defined, no interval, or (one end only) open on that side."""

    value: float | None
    low: float | None
    high: float | None
    bound: NotRequired[str]


class SampleEfficiency(IntervalJSON):
    fractions: dict[str, IntervalJSON]  # "0.5", "0.75", "0.9"; the fields above are those of "0.75"


class Stability(IntervalJSON):
    components: dict[str, IntervalJSON]  # across_time, risk, across_seeds


class Row(TypedDict):
    """One algorithm in one batch shape. Plain numbers are interquartile means over runs. The keys of ``final`` follow:
    bleu with its interval, the others plain."""

    name: str  # "ppo 64x1"
    algorithm: str
    preset: dict[str, Any] | None  # these four are null for the policy before RL
    prompts: int | None
    group_size: int | None
    learning_rate: float | None
    seeds: int  # runs, over all initial policies
    sft_seeds: int  # initial policies
    ev: list[float | None] | None
    reward: IntervalJSON  # held out, mean of the last three evaluations
    gain: IntervalJSON  # that minus the first
    sample_efficiency: SampleEfficiency
    compute_efficiency: IntervalJSON
    stability: Stability
    convergence_step: IntervalJSON
    bleu: IntervalJSON
    completions: float
    cpu_seconds: float
    samples_per_second: float  # completions per CPU second of the whole run


class ClaimSide(IntervalJSON):
    verdict: str


class Claim(TypedDict):
    """A claim of the article as a ratio over the headline PPO, beside what was measured."""

    metric: str
    claimed: float
    claimed_from: float
    claimed_to: float
    cluster_ema: ClaimSide
    grpo: ClaimSide
    verdict: str


class CurveJSON(TypedDict):
    completions: list[float]
    cpu_seconds: list[float]
    reward: dict[str, list[float | None]]  # mean (interquartile), low, high


class Difficulty(TypedDict):
    headline: str | None  # the row that efficiency is measured against: PPO with one completion for each prompt
    rows: list[Row]
    claims: list[Claim]
    icc: list[float | None] | None  # of the grpo row, one for each evaluation
    ev: list[float | None] | None  # of the headline PPO
    group_size: int | None  # the one icc was measured with
    noise_ratio_to_constant: float | None  # first-order, at the first icc
    noise_ratios: (
        list[float | None] | None
    )  # first-order, against the headline's critic, at each evaluation's icc and ev
    first_order_noise_ratio: float | None  # their median
    curves: dict[str, CurveJSON]


class Table(TypedDict):
    """`table.json`.

    ``config`` is the experiment's and has at least ``data`` (the spec), ``quick``, ``parameters`` (of the policy) and
    ``swept_on`` (difficulty -> the data its settings were searched on).
    """

    difficulties: dict[str, Difficulty]
    verdicts: dict[str, str]  # metric -> verdict over all difficulties
    config: dict[str, Any]
    versions: dict[str, str]
    source_hash: str
    command: str
    wall_seconds: float
    cpu_seconds: float
