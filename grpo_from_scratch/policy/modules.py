"""What sampling and scoring need of any causal LM: what is inside its wrappers, its mode, its states."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


def unwrap(model: nn.Module) -> nn.Module:
    """The causal LM inside DistributedDataParallel and inside PEFT's wrapper (whose adapters live in the LM's layers).

    Attributes are its own; a forward pass whose gradients have to be averaged over ranks goes through the wrapper.
    """
    model = model.module if isinstance(model, DistributedDataParallel) else model
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def trained_weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name."""
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}


@contextmanager
def captured_input(module: nn.Module, wanted: bool) -> Iterator[list[Tensor]]:
    """What goes into ``module`` while the context is open, appended to the list it gives, if wanted."""
    inputs: list[Tensor] = []
    if not wanted:
        yield inputs
        return
    handle = module.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    try:
        yield inputs
    finally:
        handle.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off inside, every module back in its own mode after.

    Hugging Face checkpoints a layer only in training mode, so the checkpointed layer itself keeps that mode, and since
    backward runs it again and must find it unchanged, nothing is put back when gradient checkpointing is at work.
    """
    training = [module for module in model.modules() if module.training]
    checkpointed = [m for m in training if getattr(m, "gradient_checkpointing", False) and torch.is_grad_enabled()]
    model.eval()
    for module in checkpointed:
        module.training = True
    try:
        yield
    finally:
        if not checkpointed:
            for module in training:
                module.training = True
