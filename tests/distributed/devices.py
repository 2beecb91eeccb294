"""Two devices where there is none: "lazy:0" and "lazy:1" compute on the CPU, and refuse each other as GPUs do.

PyTorch knows the names and has nothing behind them here. Inside ``two_devices`` an operation on tensors of both raises,
but for copies, numbers (0-dimensional tensors of the CPU) and indices that lie on the CPU, which CUDA takes too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_from_scratch.policy.packing import PackedDecoder

CPU = torch.device("cpu")
COPIES = ("_to_copy", "copy_")
INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")


class Placed(torch.Tensor):
    """A tensor that says it lies on ``device``; its numbers are those of a tensor on the CPU."""

    @staticmethod
    def __new__(cls, numbers: torch.Tensor, device: torch.device):
        layout = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset(), "dtype": numbers.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, device=device, **layout)

    def __init__(self, numbers: torch.Tensor, device: torch.device):
        self.numbers = numbers

    def data_ptr(self) -> int:
        return self.numbers.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return _run(operation, args, kwargs or {})


class _Data(TorchFunctionMode):
    """Between Python's numbers and tensors there is no operation that ``_Mode`` could see."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.tolist:
            return function(args[0].cpu())
        if function not in (torch.tensor, torch.as_tensor) or not kwargs.get("device"):
            return function(*args, **kwargs)
        device = kwargs.pop("device")
        return function(*args, **kwargs).to(device)


@contextmanager
def two_devices() -> Iterator[None]:
    real = torch.autocast
    off = patch("torch.autocast", lambda kind, **options: real("cpu" if kind == "lazy" else kind, **options))
    # Neither autocast, which is always off here, nor inference mode knows tensors of such devices.
    plain = patch.object(PackedDecoder, "_logits", torch.no_grad()(PackedDecoder._logits.__wrapped__))
    with _Mode(), _Data(), off, plain:
        yield


def _run(operation, args, kwargs):
    name = operation.overloadpacket.__name__
    tensors: list[torch.Tensor] = []
    _each([*args, *kwargs.values()], tensors.append)
    devices = {t.device for t in tensors if t.dim() or t.device != CPU}
    if name in INDEXING:
        devices -= {CPU} if args[0].device != CPU else set()
    if len(devices) > 1 and name not in COPIES:
        raise RuntimeError(f"{operation} of tensors on {' and '.join(sorted(map(str, devices)))}")
    asked = kwargs.get("device")
    target = args[0].device if name == "copy_" else torch.device(asked) if asked else next(iter(devices), CPU)
    if asked:
        kwargs = kwargs | {"device": CPU}
    found = operation(*_each(args, _numbers), **{key: _each(value, _numbers) for key, value in kwargs.items()})
    if target == CPU:
        return found
    if operation._schema.is_mutable:  # what it wrote into is there already
        return args[0]
    return _each(found, lambda tensor: Placed(tensor, target))


def _each(tree: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    if isinstance(tree, torch.Tensor):
        return change(tree)
    return [_each(leaf, change) for leaf in tree] if isinstance(tree, list | tuple) else tree


def _numbers(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.numbers if isinstance(tensor, Placed) else tensor
