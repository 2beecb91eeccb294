"""LoRA: low-rank additions to a model's linear layers are trained, its own weights stay as they are.

PEFT's layers take the places of the linear ones. The model stays of its class, with its attention, blocks and head, so
that nothing else needs to know; and without its additions it is the model it was, which saves a frozen reference.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from grpo_from_scratch.dialogue.extras import extra
from grpo_from_scratch.distributed.randomness import key_seed
from grpo_from_scratch.distributed.sharding import whole

ADAPTER = "default"  # PEFT's name for a single one


def add_lora(model: nn.Module, rank: int, *, alpha: float, seed: int = 0) -> None:
    """Give every linear layer but the head an addition (alpha / rank)·B·A of this rank, and train those alone.

    Hu et al. 2021, arXiv 2106.09685. A is random, keyed by the seed; B is 0, so the model computes what it did. Which
    layers there are is for PEFT to say ("all-linear"; in a mixture, the experts' tensors).

    Raises:
        ImportError: the package peft is not installed.
    """
    peft = extra("peft", "peft", "LoRA")
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what PEFT adjusts by itself
        torch.manual_seed(key_seed(seed, "LoRA"))
        peft.inject_adapter_in_model(config, model)


def lora_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers with an addition, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}


@contextmanager
def without_lora(model: nn.Module) -> Iterator[None]:
    """Inside, a model with LoRA computes what it did before it was trained. Any other is left alone."""
    layers = lora_layers(model).values()
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


@torch.no_grad()
def merged(model: nn.Module) -> dict[str, Tensor]:
    """The state of a model with LoRA as that of a plain one, W + (alpha / rank)·B·A under the name of W: whole tensors.

    All ranks call it for a model that is sharded over them.
    """
    state = {_plain(name): weight for name, weight in whole(model.state_dict()).items() if ".lora_" not in name}
    for name, layer in lora_layers(model).items():
        weight = f"{_plain(name)}.{getattr(layer, 'parameter_name', 'weight')}"
        state[weight] = state[weight] + whole(layer.get_delta_weight(ADAPTER))
    return state


def _plain(name: str) -> str:
    return name.replace(".base_layer", "")
