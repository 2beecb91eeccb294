"""The least arithmetic that a GRPO step can do when a group shares its prompt, and how fast this machine does it."""

import time

import torch
from torch import nn

from benchmarks.ours import Step
from grpo_from_scratch.policy.modules import unwrap

SIZE = 1024  # of the square matrices; larger ones are no faster on the CPUs tried


def multiplied_parameters(model: nn.Module) -> int:
    """How many parameters a token is multiplied with: all, but for an input embedding that is not the LM head too."""
    lm = unwrap(model)
    embedding, head = lm.get_input_embeddings().weight, lm.get_output_embeddings().weight
    return sum(p.numel() for p in lm.parameters() if p is not embedding or p is head)


def floor_flops(parameters: int, step: Step, completions: int, *, reference: bool) -> float:
    """2 · parameters · tokens to sample, three times that to train, once more where a reference scores.

    Tokens are each group's prompt, once, and every completion without its last token, which predicts nothing.
    """
    tokens = step.prompt_tokens + step.completion_tokens - completions
    return 2 * parameters * tokens * (1 + 3 + reference)


def matmul_peak(seconds: float = 0.05) -> float:
    """float32 operations per CPU-second of a product of square matrices, in the threads torch has now."""
    a, b = torch.ones(2, SIZE, SIZE)
    torch.mm(a, b)
    start, count = time.process_time(), 0
    while time.process_time() - start < seconds:
        torch.mm(a, b)
        count += 1
    return 2 * SIZE**3 * count / (time.process_time() - start)
