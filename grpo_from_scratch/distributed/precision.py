"""Half precision where it is safe: forward and backward passes. Weights, optimizer state and log-softmax stay float32.

Source: Micikevicius et al. 2018, Mixed Precision Training (arXiv 1710.03740).
"""

import math
from collections.abc import Iterable
from types import SimpleNamespace

import torch
from torch import Tensor, nn

from grpo_from_scratch.distributed.sharding import by_kind, clip_gradients

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """A context in which matrix products are computed in this precision; in "fp32" it changes nothing."""
    dtype = PRECISIONS[precision]
    enabled = dtype != torch.float32
    return torch.autocast(device.type, dtype=dtype if enabled else None, enabled=enabled)


def check_weights(model: nn.Module) -> None:
    """Refuse to train weights that cannot hold a small update: 1 + 1e-3 is 1 in bfloat16.

    Raises:
        ValueError: a trainable weight is not float32 (or float64).
    """
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
            raise ValueError(
                f"the weight {name} is {parameter.dtype}, and an optimizer needs float32 weights: load the policy with "
                "dtype=torch.float32 and choose the precision of its passes with precision='bf16' or 'fp16'"
            )


class LossScaler:
    """Backward pass and optimizer step for one optimizer, with a dynamic loss scale in "fp16".

    Gradients below about 6e-8 are 0 in float16, so the loss is multiplied by a large number first, and the float32
    gradients are divided by it. When a gradient overflows, the step is skipped and the scale halved; after 2000 steps
    without one it is doubled (``torch.amp.GradScaler``).
    """

    def __init__(self, precision: str, device: torch.device):
        self.scaler = torch.amp.GradScaler(device.type, enabled=precision == "fp16")

    @property
    def scale(self) -> float:
        """What the loss is multiplied by; 1 without scaling."""
        return self.scaler.get_scale()

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradients, scaled, to those of its weights."""
        self.scaler.scale(loss).backward()

    def step(
        self, optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], max_norm: float
    ) -> tuple[float, bool]:
        """Unscale, clip, step.

        Returns:
            The gradient's norm before clipping, and whether the step was made. A skipped one changes neither weights
            nor optimizer state.

        Raises:
            FloatingPointError: the gradient is not finite, and a smaller scale cannot be why it will be.
        """
        parameters = list(parameters)
        kinds = [SimpleNamespace(param_groups=[{"params": alike}]) for alike in by_kind(parameters)]
        for kind in kinds:
            self.scaler.unscale_(kind)  # takes whole and sharded gradients apart only
        norm = clip_gradients(parameters, max_norm).item()
        if math.isfinite(norm):
            optimizer.step()
            self.scaler.update()
            return norm, True
        if not self.scaler.is_enabled() or self.scale < 1:
            raise FloatingPointError("the gradient is not finite")
        # By the norm, which all ranks know, and not by what GradScaler found in this rank's part of the gradient.
        lower = self.scale * self.scaler.get_backoff_factor()
        self.scaler.update(lower)
        self.load_state_dict(self.state_dict() | {"_growth_tracker": 0})
        return norm, False

    def state_dict(self) -> dict:
        """Scale and count of steps since it last changed; empty without scaling."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict) -> None:
        """Take over what ``state_dict`` gave."""
        if state:
            self.scaler.load_state_dict(state)
