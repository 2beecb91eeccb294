import math

import torch
from hypothesis import strategies as st
from torch import nn

from twins import Inputs

PACKAGE = "grpo_from_scratch.distributed.precision"


def updated(kind, arguments):
    """A scaler's life: what each update says and leaves. It ends where the scaler gives up."""
    scaler = kind(arguments["precision"], torch.device("cpu"))
    if arguments["precision"] == "fp16":
        scaler.load_state_dict(scaler.state_dict() | {"scale": arguments["scale"], "_growth_tracker": 1998})
    weights, rows = nn.ParameterList([torch.tensor([3.0, 4.0]), torch.tensor([1.0]), torch.tensor([5.0])]), []
    optimizer = torch.optim.AdamW(weights.parameters(), lr=0.1)
    for slope in arguments["slopes"]:
        optimizer.zero_grad()
        scaler.backward((weights[0].sum() + 2 * weights[1].sum()) * slope)  # the last has no gradient
        try:
            norm, made = scaler.step(optimizer, weights.parameters(), arguments["max_norm"])
        except FloatingPointError:
            rows.append("not finite")
            break
        moments = [m.clone() for state in optimizer.state.values() for m in state.values()]
        rows.append([scaler.scale, norm, made, *(w.detach().clone() for w in weights), *moments])
    return rows


SLOPES = st.floats(-4, 4, width=32) | st.sampled_from([1e-30, 1e36, math.inf, math.nan])

INPUTS = {
    f"{PACKAGE}.LossScaler": Inputs(
        st.fixed_dictionaries(
            {
                "precision": st.sampled_from(["fp32", "bf16", "fp16"]),
                "scale": st.sampled_from([0.5, 1.0, 2.0, 2.0**16]),
                "max_norm": st.sampled_from([0.5, 100.0]),
                "slopes": st.lists(SLOPES, min_size=1, max_size=5),
            }
        ),
        call=updated,
    )
}
