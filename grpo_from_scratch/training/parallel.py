"""ParallelGRPO: the article's interface, in front of TrainConfig and RLTrainer."""

import dataclasses
from contextlib import nullcontext

import torch

from grpo_from_scratch.distributed.placement import check, layer_names, own_names, parse_devices
from grpo_from_scratch.distributed.process_group import current, joined
from grpo_from_scratch.objective.presets import PRESETS
from grpo_from_scratch.policy.loading import save_policy, skeleton
from grpo_from_scratch.training.config import TrainConfig
from grpo_from_scratch.training.trainer import RLTrainer, RunResult


class ParallelGRPO:
    """The article's algorithm (preset ``cluster_ema``) on a model whose weights lie on several devices.

        ParallelGRPO("path/to/model", device_map={"layer_0": "cuda:0", "layer_1": "cuda:1"}).train(reward="chrf")

    A device map places whole layers, which run one after another in one process. It is *not* tensor parallelism, which
    splits every layer over the processes that torchrun starts: that is ``strategy="tensor"``, without a map.

    Args:
        model_name: a Hugging Face folder or hub id, or "tiny".
        device_map: {"layer_0": "cuda:0", "layer_1": 1, …}: a device for each layer, or for modules by the model's own
            names. Embeddings go with the first layer, the last norm and the head with the last; tied weights stay
            together.
        num_groups: semantic groups of replies that share a baseline; two numbers are the range of an adaptive one.
        strategy: "ddp", "fsdp" or "tensor" under torchrun, or "layers" in one process. By default "layers" with a
            device map and "ddp" without. "layers" without a map spreads the layers evenly over all GPUs.

    Attributes:
        config: every number of the run; ``train`` changes it as it is told.
        device_map: in the model's own names; None unless the strategy is "layers".

    Raises:
        ValueError: a device map with another strategy than "layers", or one that does not fit the model or the machine.
    """

    def __init__(
        self,
        model_name: str,
        device_map: dict[str, str | int] | None = None,
        num_groups: int | tuple[int, int] = 4,
        strategy: str | None = None,
    ):
        strategy = strategy or ("ddp" if device_map is None else "layers")
        if strategy == "layers":
            model = skeleton(model_name)
            device_map = own_names(model, parse_devices(evenly(model) if device_map is None else device_map))
            check(model, device_map)
        preset = dataclasses.replace(PRESETS["cluster_ema"], num_groups=num_groups)
        self.config = TrainConfig(preset, model=model_name, strategy=strategy, device_map=device_map)

    @property
    def device_map(self) -> dict[str, str] | None:
        return self.config.device_map

    def train(self, *, data: str = "embedded", reward: str = "bleu", steps: int = 40, **settings) -> RunResult:
        """The whole run, or what is left of it. The policy is saved to ``config.folder / "policy"`` as well.

        A script that calls this may be started by torchrun, which it joins, or has joined (``process_group.joined``).

        Args:
            data, reward, steps, settings: fields of TrainConfig, except for what the constructor was told.

        Raises:
            ValueError: a setting that does not fit; see TrainConfig and RLTrainer.
        """
        if told := sorted({"preset", "model", "strategy", "device_map"} & settings.keys()):
            raise ValueError(
                f"{', '.join(told)}: ParallelGRPO is the article's algorithm, laid out as its constructor was told; "
                "another one is RLTrainer(TrainConfig(preset=…))"
            )
        self.config = dataclasses.replace(self.config, data=data, reward=reward, steps=steps, **settings)
        with joined() if current().store is None else nullcontext():
            result = RLTrainer(self.config).train()
            save_policy(result.model, result.tokenizer, self.config.folder / "policy", write=current().is_first)
        return result


def evenly(model: torch.nn.Module) -> dict[str, str]:
    """The layers in equal runs over all GPUs; on the CPU where there is none."""
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    count = len(layer_names(model))
    return {f"layer_{number}": devices[number * len(devices) // count] for number in range(count)}
