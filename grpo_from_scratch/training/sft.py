"""Supervised fine-tuning: teach a policy to answer at all, before rewards teach it to answer well."""

import dataclasses
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import torch
from torch import nn

from grpo_from_scratch.dialogue.corpus import vocabulary
from grpo_from_scratch.dialogue.dataset import Example, encode_prompt, encode_reply
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.distributed.randomness import numpy_generator
from grpo_from_scratch.policy.loading import load_policy, new_tiny_policy, save_policy
from grpo_from_scratch.policy.logprobs import score_completions
from grpo_from_scratch.policy.rollout import Rollout, given_completions
from grpo_from_scratch.training.provenance import NOT_COMPUTING, data_hash, source_hash, versions
from grpo_from_scratch.training.schedule import warmup_cosine

MAX_WORDS = 4000  # of a tokenizer trained on real text: beyond, a 0.3 M model would be nearly all embedding


@dataclass(frozen=True)
class SFTConfig:
    """One fine-tuning run. Its hash, with the data's, names the cached result."""

    model: str = "tiny"
    data: str = "embedded"
    steps: int = 700
    prompts_per_step: int = 32
    learning_rate: float = 4e-3
    warmup: float = 0.07
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    max_prompt_tokens: int = 192
    max_new_tokens: int = 24
    seed: int = 0
    skip_bad: bool = False


def starting_policy(model: str, data: str, examples: Iterable[Example], seed: int, *, device: str | None = None):
    """(model, tokenizer) that a run begins with: a saved one, or a new tiny one that knows the data's words."""
    if model != "tiny":
        return load_policy(model, device=device)
    if data.partition(":")[0] == "embedded":
        return new_tiny_policy(vocabulary(), seed=seed)
    texts = (text for e in examples for text in (*e.background, *e.turns, *e.responses, *e.references))
    return new_tiny_policy(texts, seed=seed, max_vocab=MAX_WORDS)


def fine_tune(
    config: SFTConfig,
    model: nn.Module,
    tokenizer,
    examples: list[Example],
    on_step: Callable[[int, float], None] | None = None,
) -> list[float]:
    """Train ``model`` in place on the examples' responses: mean negative log-likelihood over a step's reply tokens.

    A prompt is forwarded once for all its replies, like a group in reinforcement learning.

    Returns:
        The loss of each step, in nats per token.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    warmup, losses = round(config.warmup * config.steps), []
    for step in range(config.steps):
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate * warmup_cosine(step, warmup=warmup, total=config.steps)
        chosen = numpy_generator(config.seed, "fine-tuning", step).integers(len(examples), size=config.prompts_per_step)
        batch = _replies([examples[i] for i in chosen], tokenizer, config)
        logps = score_completions(model, batch, entropy=False).logps  # (B, T), 0 behind the mask
        loss = -logps.sum() / batch.completion_mask.sum()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), config.max_grad_norm)
        optimizer.step()
        losses.append(loss.item())
        if on_step:
            on_step(step + 1, losses[-1])
    return losses


def fine_tuned_policy(
    config: SFTConfig,
    on_step: Callable[[int, float], None] | None = None,
    cache: Path | None = None,
    examples: list[Example] | None = None,
) -> Path:
    """The folder of the policy that this config leads to, fine-tuned now or found in the cache.

    Args:
        cache: where fine-tuned policies are kept; by default ``cache_folder()``.
        examples: what to imitate instead of all that ``config.data`` has to train on: a curated part of it, say.
    """
    if examples is None:
        examples = load_examples(config.data, "train", skip_bad=config.skip_bad)
    folder = (cache or cache_folder()) / f"sft-{_key(config, examples)}"
    if (folder / "config.json").is_file():
        return folder
    model, tokenizer = starting_policy(config.model, config.data, examples, config.seed)
    cpu = time.process_time()
    losses = fine_tune(config, model, tokenizer, examples, on_step)
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    save_policy(model, tokenizer, partial)
    record = {"config": dataclasses.asdict(config), "losses": losses, "cpu_seconds": time.process_time() - cpu}
    (partial / "sft.json").write_text(json.dumps(record), encoding="utf-8")
    try:
        partial.rename(folder)  # whole or not at all; another process may have been first, with the same result
    except OSError:
        if not (folder / "config.json").is_file():
            raise
        shutil.rmtree(partial)
    return folder


def cache_folder() -> Path:
    """Where fine-tuned policies are kept: ``$GRPO_CACHE``, or the user's cache folder."""
    return Path(os.environ.get("GRPO_CACHE") or platformdirs.user_cache_path("grpo_from_scratch"))


def _replies(examples: list[Example], tokenizer, config: SFTConfig) -> Rollout:
    prompts = [encode_prompt(e, tokenizer, config.max_prompt_tokens) for e in examples]
    replies = [[encode_reply(text, tokenizer)[: config.max_new_tokens] for text in e.imitated] for e in examples]
    return given_completions(tokenizer, prompts, replies)


def _key(config: SFTConfig, examples: list[Example]) -> str:
    """What the result depends on: the settings, the data itself, the weights it begins with, versions and source."""
    parts = [dataclasses.asdict(config), versions(), data_hash(examples)]
    parts.append(source_hash(without=(*NOT_COMPUTING, "evaluation")))
    if (path := Path(config.model)).exists():  # it stays the same path when the weights change
        files = [path] if path.is_file() else sorted(path.glob("*.safetensors"))
        parts.append([(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files])
    return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=8).hexdigest()
