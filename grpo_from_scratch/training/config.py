"""TrainConfig: every number of a run, checked before anything runs and saved with its results."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_from_scratch.distributed.placement import parse_devices
from grpo_from_scratch.distributed.precision import PRECISIONS
from grpo_from_scratch.distributed.sharding import STRATEGIES
from grpo_from_scratch.objective.fields import check_types
from grpo_from_scratch.objective.presets import Preset, get_preset

ZERO_IS = {
    "lora_rank": "to train all weights",
    "microbatch_tokens": "for no limit",
    "critic_warmup": "for none",
    "eval_every": "for never",
    "checkpoint_every": "for never",
}
NOT_POSITIVE = {
    "temperature": "a greedy policy explores nothing",
    "max_grad_norm": "gradients are scaled to this length, so they would vanish or turn round",
    "lora_alpha": "the additions are scaled by it, and 0 would leave nothing to train",
}


def _not_identity(default: Any) -> Any:
    """A field that may differ between a run and its continuation: it changes no number of the run."""
    return field(default=default, metadata={"identity": False})


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


@dataclass(frozen=True)
class TrainConfig:
    """One reinforcement-learning run.

    ``preset`` is the algorithm: a name or a ``Preset`` (``dataclasses.replace(PRESETS["grpo"], kl_coef=0)``).
    ``model`` is ``"tiny"``, a local Hugging Face folder or a hub id; ``data`` and ``reward`` are the specs that
    ``dialogue.readers.load_examples`` and ``rewards.parse_reward`` read.
    """

    preset: Preset | str = "grpo"
    model: str = "tiny"
    data: str = "embedded"
    reward: str = "bleu"
    out: str = _not_identity("runs/train")

    # One step samples prompts_per_step * group_size completions, then makes preset.passes * minibatches updates.
    steps: int = 40
    prompts_per_step: int = 8
    group_size: int = 8
    minibatches: int = 1
    # Each minibatch is run in pieces of at most so many tokens, with the same gradient and less memory; 0: one piece.
    microbatch_tokens: int = 0
    max_prompt_tokens: int = 192
    max_new_tokens: int = 24
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    lora_rank: int = 0  # train low-rank additions to the linear layers, of this rank; 0: all weights
    lora_alpha: float = 32.0  # the additions are scaled by lora_alpha / lora_rank
    gradient_checkpointing: bool = False  # keep no layer's activations for backward: less memory, one more forward

    learning_rate: float = 3e-5
    warmup: float = 0.1  # share of all updates
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0

    # Only read when the preset's baseline is "critic".
    critic: str = "separate"  # a network of its own, or "head": a linear layer on the policy's last hidden state
    critic_learning_rate: float = 1e-3
    critic_passes: int = 1
    critic_warmup: int = 0  # first steps that train the critic alone; their completions count
    value_clip: float = 0.0  # 0 is off
    value_coef: float = 0.5  # weight of the value loss when the head shares the policy's optimizer

    shared_prefix: bool = True  # compute a prompt once for its whole group, where the model allows it
    # Weights on several ranks: "ddp", whole; "fsdp", in slices; "tensor", in parts of layers. Or "layers": one process
    # with a device for each layer, {"layer_0": "cuda:0", …} or in the model's own names.
    strategy: str = "ddp"
    device_map: dict[str, str] | None = _not_identity(None)
    precision: str = "fp32"  # of the passes over completions: or "bf16", "fp16"; sampling and weights are float32
    encoder: str = "hidden"  # what semantic groups see of a reply: the frozen reference's "hidden" states, or "tfidf"

    seed: int = 0
    eval_every: int = 5  # steps between held-out evaluations; 0 is never
    eval_prompts: int = 256
    eval_split: str = "tuning"
    checkpoint_every: int = _not_identity(10)  # steps; 0 is never
    skip_bad: bool = False

    def __post_init__(self):
        check_types(self)
        object.__setattr__(self, "preset", get_preset(self.preset))
        if not (isinstance(self.betas, list | tuple) and len(self.betas) == 2 and all(map(_is_share, self.betas))):
            raise ValueError(f"betas takes two numbers from 0 to below 1, not {self.betas!r}")
        object.__setattr__(self, "betas", tuple(self.betas))
        for name in (
            "steps",
            "prompts_per_step",
            "group_size",
            "minibatches",
            "max_prompt_tokens",
            "max_new_tokens",
            "critic_passes",
            "eval_prompts",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name, zero in ZERO_IS.items():
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 1, or 0 {zero}, not {getattr(self, name)}")
        for name in ("temperature", "max_grad_norm", *(["lora_alpha"] if self.lora_rank else [])):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}: {NOT_POSITIVE[name]}")
        if self.lora_rank and self.strategy == "tensor":
            raise ValueError("strategy 'tensor' cannot split the layers that LoRA puts in: choose 'ddp' or 'fsdp'")
        for name, allowed in {
            "critic": ("separate", "head"),
            "encoder": ("hidden", "tfidf"),
            "precision": tuple(PRECISIONS),
            "strategy": STRATEGIES,
            "eval_split": ("tuning", "report"),
        }.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is one of {', '.join(allowed)}, not {getattr(self, name)!r}")
        self._check_device_map()
        if not 0 <= self.warmup <= 1:
            raise ValueError(f"warmup is a share of all updates between 0 and 1, not {self.warmup}")
        self._check_groups()

    def _check_device_map(self):
        if self.strategy == "layers" and self.device_map is None:
            raise ValueError('strategy \'layers\' needs a device_map, {"layer_0": "cuda:0", "layer_1": "cuda:1"}')
        if self.device_map is None:
            return
        if self.strategy != "layers":
            raise ValueError(
                f"a device_map places whole layers on devices, which is strategy 'layers' and not {self.strategy!r}; "
                "it is no tensor parallelism, which splits every layer and is strategy 'tensor', without a map"
            )
        object.__setattr__(self, "device_map", parse_devices(self.device_map))

    def _check_groups(self):
        preset = self.preset
        needs_group = preset.groups == "prompt" and preset.baseline in ("mean", "leave_one_out")
        if needs_group and self.group_size < 2:
            raise ValueError(
                "this preset compares the answers to one prompt with each other, so group_size must be at least 2, not "
                f"{self.group_size}; with one answer a prompt, take a critic (ppo) or an EMA (cluster_ema)"
            )
        if preset.surrogate == "reinforce" and self.minibatches > 1:
            raise ValueError(
                "'reinforce' has no ratio to correct for earlier updates: set minibatches to 1 or surrogate to 'clip'"
            )
        if self.minibatches > self.prompts_per_step:
            raise ValueError(
                f"{self.minibatches} minibatches need at least as many prompts a step, and prompts_per_step is "
                f"{self.prompts_per_step}: groups are never split"
            )

    @property
    def total_updates(self) -> int:
        """Optimizer updates of the policy over the whole run."""
        warmup = self.critic_warmup if self.uses_critic else 0
        return max(self.steps - warmup, 0) * self.preset.passes * self.minibatches

    @property
    def uses_critic(self) -> bool:
        return self.preset.baseline == "critic"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON; :meth:`from_dict` reads it back."""
        return dataclasses.asdict(self) | {"betas": list(self.betas)}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "TrainConfig":
        """The config that :meth:`to_dict` made a dict of.

        Raises:
            ValueError: a setting that does not exist or does not fit.
        """
        if not isinstance(saved, dict):
            raise ValueError(f"a TrainConfig is saved as an object of settings, not as a {type(saved).__name__}")
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(saved) - known):
            raise ValueError(f"unknown settings {', '.join(unknown)}; a TrainConfig has {', '.join(sorted(known))}")
        preset = saved.get("preset", "grpo")
        if isinstance(preset, dict):
            if unknown := sorted(set(preset) - {f.name for f in dataclasses.fields(Preset)}):
                raise ValueError(f"unknown settings {', '.join(unknown)} of the preset")
            preset = Preset(**preset)
        return cls(**saved | {"preset": preset})

    def differences(self, other: "TrainConfig") -> list[str]:
        """``["steps: 40 there, 60 here", ...]`` for the settings that make two configs two different runs."""
        mine, theirs = (config.to_dict() for config in (self, other))
        ignored = {f.name for f in dataclasses.fields(self) if not f.metadata.get("identity", True)}
        flat_mine, flat_theirs = (tree | tree["preset"] for tree in (mine, theirs))
        names = [name for name in flat_mine if name not in ignored | {"preset", "source"}]  # it cites, and sets nothing
        lines = [
            f"{name}: {flat_theirs[name]} there, {flat_mine[name]} here"
            for name in names
            if flat_mine[name] != flat_theirs[name]
        ]
        return lines

    @property
    def folder(self) -> Path:
        return Path(self.out)
