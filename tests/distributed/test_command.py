"""``torchrun … -m grpo_from_scratch train``: the article's job on two processes in fp16."""

import json

import torch
from safetensors.torch import load_file

from grpo_from_scratch.policy.loading import load_policy


def test_train_under_torchrun(torchrun, fields, tmp_path):
    """Only rank 0 writes and talks; MP-11: what it saves is a plain policy."""
    out = tmp_path / "run"
    options = {"preset": "article", "precision": "fp16", "model": fields["model"], "data": fields["data"], "out": out}
    options |= {"steps": 2, "prompts": 2, "group-size": 3, "max-new-tokens": 4, "timeout": 60, "set": "eval_prompts=3"}
    command = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    said = torchrun("-m", "grpo_from_scratch", "train", *command).stdout
    assert said.count("held-out reward") == said.count("Policy: ") == 1
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2] and rows[-1]["completions"] == 12
    assert rows[-1]["loss_scale"] > 1 and rows[-1]["semantic_groups"] >= 1
    names = load_file(out / "policy" / "model.safetensors").keys()
    assert names == load_file(f"{fields['model']}/model.safetensors").keys()
    before, trained = (load_policy(folder)[0].lm_head.weight for folder in (fields["model"], out / "policy"))
    assert not torch.equal(trained, before)
