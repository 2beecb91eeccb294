"""Algorithms as data."""

import dataclasses
import json

import pytest

from grpo_from_scratch.objective.presets import PRESETS, Preset, get_preset

NAMES = ["grpo", "dr_grpo", "rloo", "dapo", "gspo", "cispo", "sapo", "ppo", "cluster_ema"]


def test_presets_as_published():
    """The numbers that name each algorithm, typed from the papers."""
    published = {
        "grpo": {"surrogate": "clip", "clip_low": 0.2, "clip_high": 0.2, "kl_coef": 0.04, "kl_estimator": "k3"}
        | {"kl_in": "loss", "scale": "group", "aggregate": "sequence", "baseline": "mean", "groups": "prompt"},
        "dr_grpo": {"scale": "none", "aggregate": "constant", "baseline": "mean", "kl_coef": 0},
        "rloo": {"baseline": "leave_one_out", "surrogate": "reinforce", "scale": "none", "aggregate": "constant"},
        "dapo": {"clip_low": 0.2, "clip_high": 0.28, "aggregate": "token", "kl_coef": 0, "dynamic_sampling": True}
        | {"overlong_penalty": 4096 / 20480, "scale": "group"},
        "gspo": {"level": "sequence", "clip_low": 3e-4, "clip_high": 4e-4, "aggregate": "sequence", "scale": "group"},
        "cispo": {"surrogate": "cispo", "clip_high": 4, "aggregate": "token", "kl_coef": 0, "scale": "group"},
        "sapo": {"surrogate": "sapo", "tau_pos": 1.0, "tau_neg": 1.05, "aggregate": "sequence", "kl_coef": 0},
        "ppo": {"baseline": "critic", "surrogate": "clip", "clip_low": 0.2, "clip_high": 0.2, "kl_in": "reward"}
        | {"gamma": 1.0, "lam": 0.95},
        "cluster_ema": {"groups": "semantic", "num_groups": 3, "baseline": "ema", "alpha": 0.95, "scale": "none"}
        | {"surrogate": "reinforce", "passes": 1, "kl_coef": 0},
    }
    assert list(PRESETS) == NAMES == list(published)
    for name, fields in published.items():
        assert {field: getattr(PRESETS[name], field) for field in fields} == fields, name


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cluster_ema"])
def test_presets_name_their_paper(name):
    assert "arXiv" in PRESETS[name].source


def test_get_preset():
    assert get_preset("grpo") is PRESETS["grpo"]
    assert get_preset("article") is PRESETS["cluster_ema"]
    variant = dataclasses.replace(PRESETS["grpo"], kl_coef=0.1)
    assert get_preset(variant) is variant


@pytest.mark.parametrize(
    "wrong, nearest", [("gppo", "ppo"), ("dr-grpo", "dr_grpo"), ("GRPO", "grpo"), ("articles", "article")]
)
def test_get_preset_unknown_names_the_nearest(wrong, nearest):
    with pytest.raises(ValueError, match=f"no preset '{wrong}'; nearest is '{nearest}', all are grpo, .*article"):
        get_preset(wrong)


@pytest.mark.parametrize("preset", [*PRESETS.values(), Preset(num_groups=(3, 8))])
def test_preset_survives_json(preset):
    assert Preset(**json.loads(json.dumps(dataclasses.asdict(preset)))) == preset


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kl_coef", [0.0, 0.02])
def test_preset_takes_any_kl_coefficient(name, kl_coef):
    """One table compares them all at the same coefficient."""
    assert dataclasses.replace(PRESETS[name], kl_coef=kl_coef).kl_coef == kl_coef


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"groups": "prompts"}, "groups must be one of prompt, batch, semantic, not 'prompts'"),
        ({"baseline": "median"}, "baseline must be one of"),
        ({"ema_init": "zero"}, "ema_init must be one of group_first, global_mean"),
        ({"scale": "std"}, "scale must be one of"),
        ({"surrogate": "ppo"}, "surrogate must be one of"),
        ({"level": "word"}, "level must be one of"),
        ({"aggregate": "mean"}, "aggregate must be one of sequence, token, constant"),
        ({"kl_estimator": "k4"}, "kl_estimator must be one of"),
        ({"kl_in": "both"}, "kl_in must be one of loss, reward"),
        ({"num_groups": 0}, "num_groups"),
        ({"num_groups": (5, 3)}, "num_groups"),
        ({"alpha": 1.5}, r"alpha must be within \[0, 1\]"),
        ({"gamma": -0.1}, "gamma must be within"),
        ({"lam": 2.0}, "lam must be within"),
        ({"overlong_penalty": 1.2}, "overlong_penalty must be within"),
        ({"clip_low": -0.1}, "clip_low must not be negative"),
        ({"clip_high": float("nan")}, "clip_high takes a finite number, not nan"),
        ({"passes": 1.5}, "passes takes a whole number, not 1.5"),
        ({"clip_low": "0.2"}, "clip_low takes a finite number, not '0.2'"),
        ({"dynamic_sampling": 1}, "dynamic_sampling takes true or false, not 1"),
        ({"kl_coef": -1.0}, "kl_coef must not be negative"),
        ({"tau_pos": 0.0}, "tau_pos must be positive"),
        ({"tau_neg": -1.0}, "tau_neg must be positive"),
        ({"passes": 0}, "passes must be positive"),
        ({"baseline": "ema"}, "with baseline 'ema' set groups to 'semantic' or 'batch'"),
        ({"baseline": "critic"}, "set scale to 'batch' or 'none'"),
        ({"dynamic_sampling": True, "groups": "batch"}, "dynamic sampling replaces prompts"),
        ({"dynamic_sampling": True, "baseline": "none"}, "dynamic sampling replaces prompts"),
        (
            {"surrogate": "sapo", "level": "sequence"},
            "level 'sequence' is a ratio for surrogate 'clip', not for 'sapo'",
        ),
        ({"surrogate": "reinforce", "passes": 2}, "'reinforce' has no ratio"),
        ({"kl_coef": 0.1, "kl_estimator": "k1"}, "k1 in the loss has an expected gradient of 0"),
        ({"kl_in": "reward"}, "a KL in the reward is k1"),
    ],
)
def test_preset_refuses(fields, sentence):
    """PPO-06 among them: one field says where the KL is, so it cannot be counted twice."""
    with pytest.raises(ValueError, match=sentence):
        Preset(**fields)


def test_preset_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["grpo"].kl_coef = 1.0
