"""Whole layers of a model on several devices of one process, as a device map says: {name of a module: device}.

The layers still run one after another, so a device waits while another computes: a device map is for a model that is
too large for one device. It is not tensor parallelism, which splits every layer (``sharding``).
"""

import re

import torch
from accelerate import dispatch_model
from accelerate.utils import find_tied_parameters
from torch import nn

LAYER = re.compile(r"layer_(\d+)")


def parse_devices(device_map: dict[str, str | int]) -> dict[str, str]:
    """The map with every device spelled in full: 1 and "cuda:1" are one.

    Raises:
        ValueError: no map of names to devices; a device nobody knows; a mixture of the CPU and others.
    """
    if not (isinstance(device_map, dict) and device_map and all(isinstance(name, str) for name in device_map)):
        raise ValueError(f'device_map names a device for each layer, {{"layer_0": "cuda:0", …}}, not {device_map!r}')
    devices = {}
    for name, given in device_map.items():
        try:
            device = torch.device("cuda", given) if isinstance(given, int) else torch.device(given)
        except (RuntimeError, TypeError) as error:
            raise ValueError(f"device_map puts {name!r} on {given!r}, which is no device: {error}") from None
        devices[name] = str(device) if device.type == "cpu" else f"{device.type}:{device.index or 0}"
    if len({torch.device(device).type for device in devices.values()}) > 1:
        # accelerate would keep the CPU's aside, and copy them to a GPU for each pass, without gradients
        raise ValueError("device_map mixes kinds of devices: put all layers on GPUs, or all on the CPU")
    return devices


def layer_names(model: nn.Module) -> list[str]:
    """The decoder layers of a transformers model, in order, by their names in it.

    Raises:
        ValueError: the model does not say which of its modules are layers.
    """
    blocks = set(getattr(model, "_no_split_modules", None) or ())
    lists = [
        [f"{name}.{i}" for i in range(len(part))]
        for name, part in model.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) and all(type(layer).__name__ in blocks for layer in part)
    ]
    if not lists:
        raise ValueError(f"{type(model).__name__} does not say which of its modules are layers: choose 'ddp' or 'fsdp'")
    return max(lists, key=len)


def own_names(model: nn.Module, device_map: dict[str, str]) -> dict[str, str]:
    """A map of ``layer_0``, ``layer_1`` … in the model's own names; one without such names is returned as it is.

    Embeddings, and what is tied to them or has no weights, go with the first layer; all else outside the layers, which
    is the last norm and the head, with the last. A module that the map names itself stays where that says.

    Args:
        model: may be on the meta device.

    Raises:
        ValueError: a layer is missing, or the model has no such layer.
    """
    numbered = {int(match[1]): device for name, device in device_map.items() if (match := LAYER.fullmatch(name))}
    if not numbered:
        return device_map
    layers = layer_names(model)
    missing, unknown = set(range(len(layers))) - set(numbered), set(numbered) - set(range(len(layers)))
    if missing or unknown:
        raise ValueError(
            f"the model has {len(layers)} layers, layer_0 to layer_{len(layers) - 1}, and the device map "
            f"{'misses' if missing else 'names'} {', '.join(f'layer_{i}' for i in sorted(missing or unknown))}"
        )
    first, last = numbered[0], numbered[len(layers) - 1]
    outside = {name: first if _goes_first(part) else last for name, part in _beside(model, layers)}
    for tied in find_tied_parameters(model):
        outside |= {name: first for name in outside if any(_inside(parameter, name) for parameter in tied)}
    own = {name: device for name, device in device_map.items() if not LAYER.fullmatch(name)}
    return outside | {layers[number]: numbered[number] for number in sorted(numbered)} | own


def place(model: nn.Module, device_map: dict[str, str]) -> None:
    """Move the model's layers to their devices. Between layers what they pass on is moved, and logits come back.

    Everything outside the model stays on the device of its input embeddings.

    Args:
        device_map: in the model's own names or in ``layer_i``, for every weight.

    Raises:
        ValueError: the map does not fit the model or this machine; the message says where.
    """
    device_map = own_names(model, device_map)
    check(model, device_map)
    if len(set(device_map.values())) == 1:
        model.to(next(iter(device_map.values())))
        return
    embeddings = next(name for name, part in model.named_modules() if part is model.get_input_embeddings())
    main = next(device for name, device in device_map.items() if _inside(embeddings, name))  # by default it may be any
    stays = [*model._skip_keys_device_placement, "logits_to_keep"]  # indexes what is on another device than the inputs
    dispatch_model(model, device_map, main_device=main, skip_keys=stays)


def check(model: nn.Module, device_map: dict[str, str]) -> None:
    """See that the map, in the model's own names, has a place here for every weight.

    Raises:
        ValueError: it has not; the message says for which.
    """
    layers, parameters = layer_names(model), dict(model.named_parameters(remove_duplicate=False))
    known = {name for name, _ in model.named_modules()} | set(parameters)
    for name, device in device_map.items():
        if name not in known:
            raise ValueError(f"the device map names {name!r}, which the model has not: its layers are {_some(layers)}")
        if any(_inside(name, layer) and name != layer for layer in layers):
            raise ValueError(f"the device map names {name!r}, a part of a layer: a layer is on one device as a whole")
        _check_device(device)
    owners = {p: [name for name in device_map if _inside(p, name)] for p in parameters}
    missing = [parameter for parameter, names in owners.items() if not names]
    if missing:
        raise ValueError(f"the device map has no device for {_some(missing)}")
    twice = next((names for names in owners.values() if len(names) > 1), None)
    if twice:
        raise ValueError(f"the device map names {' and '.join(map(repr, twice))}, and one is a part of the other")
    for tied in find_tied_parameters(model):
        if len({device_map[owners[name][0]] for name in tied}) > 1:
            raise ValueError(
                f"{' and '.join(sorted(tied))} are one weight, and the device map puts them on two devices"
            )


def _check_device(device: str) -> None:
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):  # of a build that knows no such devices
        raise ValueError(f"the device map names {device}, and this machine has no such device") from None
    if torch.device(device).type == "meta":
        raise ValueError("the device map names meta, a device that holds no numbers")


def _beside(model: nn.Module, layers: list[str]) -> list[tuple[str, nn.Module]]:
    """The largest modules that hold no layer."""
    holders = {layers[0].rpartition(".")[0]}
    holders |= {name for name, _ in model.named_modules() if not name or any(_inside(h, name) for h in holders)}
    return [
        (name, part)
        for name, part in model.named_modules()
        if name not in holders and name.rpartition(".")[0] in holders and name not in layers
    ]


def _goes_first(part: nn.Module) -> bool:
    return any(isinstance(m, nn.Embedding) for m in part.modules()) or not list(part.parameters())


def _inside(name: str, of: str) -> bool:
    return not of or name == of or name.startswith(f"{of}.")


def _some(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
