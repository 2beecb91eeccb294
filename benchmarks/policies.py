"""The policies that the benchmarks run: small Llamas with random or fine-tuned weights, and prompts for them.

    python -m benchmarks.policies        builds them all (a few minutes) and says where they are

Each is a folder as ``benchmarks.grpo_step --model`` takes it: a Hugging Face model, its tokenizer and ``data.jsonl``.
"""

import dataclasses
import json
import os
import random
from pathlib import Path

import platformdirs

from grpo_from_scratch.dialogue.corpus import vocabulary
from grpo_from_scratch.dialogue.dataset import Example, encode_prompt
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.policy.loading import load_policy, new_tiny_policy, save_policy
from grpo_from_scratch.training.sft import SFTConfig, fine_tune

SIZES = {"0.3M": {"hidden_size": 96, "layers": 2, "heads": 4}, "2M": {"hidden_size": 192, "layers": 4, "heads": 6}}
EARLIER = {"40": 1, "200": 11}  # prompt tokens, roughly: how many exchanges stand before the last question
TUNING = SFTConfig(steps=400, prompts_per_step=16, learning_rate=2e-3, max_prompt_tokens=256)
ROWS = 512


def policy_folder(size: str, *, trained: bool, prompt_tokens: str) -> Path:
    """The folder of one of the policies, built now or found in the cache (``$GRPO_CACHE`` or the user's)."""
    cache = Path(os.environ.get("GRPO_CACHE") or platformdirs.user_cache_path("grpo_from_scratch"))
    folder = cache / "benchmarks" / f"{size}-{'trained' if trained else 'random'}-{prompt_tokens}"
    if not (folder / "data.jsonl").is_file():
        _build(folder, size, trained, prompt_tokens)
    return folder


def long_examples(earlier: list[int], seed: int) -> list[Example]:
    """Dialogues in which ``earlier[i]`` exchanges from other dialogues come before example i's own question."""
    examples, choose = load_examples("embedded", "train"), random.Random(seed)
    result = []
    for count in earlier:
        *others, last = choose.sample(examples, count + 1)
        turns = [text for other in others for text in (other.turns[-1], min(other.responses, key=len))]
        result.append(dataclasses.replace(last, turns=(*turns, last.turns[-1])))
    return result


def _build(folder: Path, size: str, trained: bool, prompt_tokens: str) -> None:
    if trained and prompt_tokens != "40":  # the same weights answer short and long prompts
        model, tokenizer = load_policy(policy_folder(size, trained=True, prompt_tokens="40"), device="cpu")
    else:
        model, tokenizer = new_tiny_policy(vocabulary(), **SIZES[size])
        if trained:
            fine_tune(TUNING, model, tokenizer, long_examples([i % 12 for i in range(6000)], seed=0))
    save_policy(model, tokenizer, folder)
    rows = [
        {"prompt": tokenizer.decode(encode_prompt(example, tokenizer)[1:]), "reference": example.references[0]}
        for example in long_examples([EARLIER[prompt_tokens]] * ROWS, seed=1)
    ]  # without the <bos> that the tokenizer puts in front again
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    for name in SIZES:
        for weights in (True, False):
            for tokens in EARLIER:
                print(policy_folder(name, trained=weights, prompt_tokens=tokens))
