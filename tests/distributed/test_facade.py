"""ParallelGRPO in a script that torchrun starts and that knows nothing of processes."""

import json

import torch
from jobs import make_config

from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.training.trainer import RLTrainer


def test_parallel_grpo_on_two_processes_is_one_run(torchrun, fields, tmp_path):
    run = fields | {"steps": 2, "eval_every": 0}
    plain = make_config(run | {"preset": "cluster_ema", "changes": {"num_groups": 3}}, tmp_path / "one")
    expected = dict(RLTrainer(plain).train().model.named_parameters())
    torchrun("facade.py", json.dumps(run | {"strategy": "fsdp"}), str(tmp_path / "two"))
    assert [json.loads((tmp_path / "two" / f"said.{rank}").read_text()) for rank in (0, 1)] == [[1, 2]] * 2
    found = load_policy(tmp_path / "two" / "policy")[0]
    for name, p in found.named_parameters():
        assert torch.allclose(p, expected[name], rtol=0, atol=1e-5), name
