"""Two processes do what one does, to rounding: one job with many runs, compared with the same runs in this process."""

import importlib.util
import math

import pytest
import torch
from jobs import make_config, replies, trained
from jobs import tensors as tensors_of
from safetensors.torch import load_file

from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.training.trainer import RLTrainer

CLOCKS = ("seconds", "second")

# Lengths are ragged everywhere, and 5 prompts of 3 are 3 and 2 of them.
RUNS = {
    "ppo": {"preset": "ppo", "changes": {"passes": 2}, "minibatches": 2, "value_clip": 0.2},
    "ppo_head": {"preset": "ppo", "changes": {"passes": 1}, "critic": "head", "critic_warmup": 1, "steps": 3},
    "grpo": {"preset": "grpo", "changes": {"passes": 2}, "minibatches": 2, "microbatch_tokens": 50},
    "dapo": {"preset": "dapo", "minibatches": 2},
    "cluster_ema": {"preset": "cluster_ema", "microbatch_tokens": 50},
    "tfidf": {"preset": "cluster_ema", "encoder": "tfidf", "steps": 3},
    "a group that spans ranks": {"preset": "grpo", "prompts_per_step": 1, "group_size": 7},
    "an empty rank": {"preset": "grpo", "prompts_per_step": 2, "minibatches": 2, "eval_prompts": 1},
    "nothing to learn from": {"preset": "dr_grpo", "reward": "half_missing", "prompts_per_step": 2},
}
if importlib.util.find_spec("peft"):
    RUNS["lora"] = {"preset": "cluster_ema", "changes": {"kl_coef": 0.1}, "lora_rank": 2}
RUNS |= {name: {"preset": name, "steps": 2, "eval_every": 0} for name in PRESETS if name not in RUNS}


@pytest.fixture(scope="module")
def runs(fields):
    return {name: fields | run for name, run in RUNS.items()}


@pytest.fixture(scope="module")
def one(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    return trained(runs, folder), {name: load_file(folder / f"{name}.0") for name in runs}


@pytest.fixture(scope="module")
def two(runs, job, tmp_path_factory):
    """What each rank found, then the tensors of each."""
    out = tmp_path_factory.mktemp("two")
    RLTrainer(make_config(runs["cluster_ema"], out / "gone_on")).train(until=2)  # begun by one process
    everything = {"operations": None, "errors": None, "trained": runs, "gone_on": runs["cluster_ema"]}
    everything |= {"begun": runs["ppo"]}
    everything |= {name: fields_of(runs, prompts_per_step=1, group_size=4) for name in ("replies", "split_group")}
    found, folder = job("everything", everything, out=out)
    tensors = {name: [load_file(folder / f"{name}.{rank}") for rank in (0, 1)] for name in (*runs, "gone_on")}
    one = RLTrainer(make_config(runs["ppo"], folder / "begun"))  # begun by two
    assert one.progress.step == 2
    one.train()
    return found, tensors | {"begun": [tensors_of(one)]}


def fields_of(runs: dict, **changes) -> dict:
    return runs["dr_grpo"] | {"preset": "grpo", "changes": {"kl_coef": 0.0}} | changes


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_what_one_trains(one, two, name):
    """Weights after the last step, its gradients and every metric to 1e-5; MP-10: nobody waits for an empty rank."""
    (found, tensors), (ranks, of_ranks) = one, two
    for of_rank in of_ranks[name]:
        assert of_rank.keys() == tensors[name].keys()
        for key, tensor in tensors[name].items():
            assert torch.allclose(of_rank[key], tensor, rtol=0, atol=1e-5), key
    for rows in zip(found[name]["metrics"], *(rank["trained"][name]["metrics"] for rank in ranks), strict=True):
        alone, *others = (
            {key: math.nan if value is None else value for key, value in row.items() if not key.endswith(CLOCKS)}
            for row in rows
        )
        assert all(other == pytest.approx(alone, rel=1e-5, abs=1e-5, nan_ok=True) for other in others)
    assert max(float(tensor.abs().max()) for key, tensor in tensors[name].items() if key.endswith("grad")) > 1e-3


@pytest.mark.parametrize("name", RUNS)
def test_ranks_have_the_same_bits(two, name):
    """Weights, gradients, centres of semantic groups and moving averages."""
    ranks, tensors = two
    first, second = tensors[name]
    assert all(torch.equal(first[key], second[key]) for key in first)
    remembered = [rank["trained"][name]["remembered"] for rank in ranks]
    assert remembered[0] == remembered[1] and bool(remembered[0]) == (RUNS[name]["preset"] == "cluster_ema")


def test_another_number_of_processes_goes_on_with_a_run(one, two):
    """Two after one, and one after two; moments, moving averages and centres serve them as they served the others."""
    assert [rank["gone_on"] for rank in two[0]] == [2, 2]
    for name, run in {"gone_on": "cluster_ema", "begun": "ppo"}.items():
        for tensors in two[1][name]:
            assert all(torch.allclose(tensors[key], t, rtol=0, atol=1e-5) for key, t in one[1][run].items())


def test_a_rank_had_nothing_to_learn_from(one):
    """MP-10: two prompts, one on each rank, and the replies to one of them have no score."""
    assert 0.5 in [row.get("reward_missing") for row in one[0]["nothing to learn from"]["metrics"]]


def test_operations_with_unequal_and_no_rows(two):
    """MP-08: the mean of [2, 4, 6] and [10] is 5.5, not 7. MP-12: what no rank has a gradient for stays without."""
    for rank in two[0]:
        assert rank["operations"] == {
            "mean": 5.5,
            "ragged": [[], [[0, 1, 2]]],
            "bools": [[], [True]],
            "nothing": [[0, 2], [0, 2]],
            "large": [[0, 0], [3000, 21000]],
            "large sum": 2000.0,
            "objects": [{"rank": 0}, {"rank": 1}],
            "first": 7,
            "gradients": [[3.0] * 3, [1.0] * 3, None],
        }


def test_every_rank_hears_of_an_error_on_rank_0_and_of_a_rank_that_differs(two):
    for rank in two[0]:
        assert rank["errors"] == ["No space left on device", "seed: rank 1 and rank 0 differ (1 and 0)"]


def test_ranks_sample_what_one_process_samples(runs, two, tmp_path):
    """MP-07: a reply depends on its number in the step, so ranks draw different ones, and together those of one."""
    first, second = (rank["replies"] for rank in two[0])
    assert first + second == replies(fields_of(runs, prompts_per_step=1, group_size=4), tmp_path)
    assert len(first) == len(second) == 2 and first != second


def test_a_group_split_over_ranks_is_compared_as_one(two):
    """ADV-08: rewards 1, 1 on one rank and 0, 0 on the other; by themselves they would all be 0."""
    advantages = [advantage for rank in two[0] for advantage in rank["split_group"]]
    assert advantages == pytest.approx([0.866, 0.866, -0.866, -0.866], abs=1e-3)
