import math

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from twins import Inputs

PACKAGE = "grpo_from_scratch.objective.baselines"


def rewards(count: int) -> st.SearchStrategy[torch.Tensor]:
    """float32 (count,) with some missing."""
    values = st.floats(-3, 3, width=32, allow_subnormal=False) | st.just(math.nan)
    return hnp.arrays(np.float32, count, elements=values, fill=st.nothing()).map(torch.from_numpy)


def group_ids(count: int) -> st.SearchStrategy[torch.Tensor]:
    """int64 (count,) of three groups in any order."""
    return st.lists(st.sampled_from([0, 7, -2]), min_size=count, max_size=count).map(torch.tensor)


def remembered(kind, arguments):
    """A moving average's life: what each batch is compared with, and what is left in the end."""
    memory, used = kind(arguments["alpha"], arguments["init"]), []
    for batch, groups in arguments["batches"]:
        used.append(memory(batch, groups))
        memory.update(batch, groups)
    return {"used": used, "values": dict(sorted(memory.values.items()))}


REWARDS_IN_GROUPS = st.fixed_dictionaries({"rewards": rewards(6), "groups": group_ids(6)})

INPUTS = {
    f"{PACKAGE}.EMABaseline": Inputs(
        st.fixed_dictionaries(
            {
                "alpha": st.sampled_from([0.0, 0.5, 0.95, 1.0]),
                "init": st.sampled_from(["group_first", "global_mean"]),
                "batches": st.lists(st.tuples(rewards(4), group_ids(4)), min_size=1, max_size=3),
            }
        ),
        call=remembered,
    ),
    f"{PACKAGE}.batch_mean": Inputs(st.fixed_dictionaries({"rewards": rewards(4)})),
    f"{PACKAGE}.group_mean": Inputs(REWARDS_IN_GROUPS),
    f"{PACKAGE}.leave_one_out": Inputs(REWARDS_IN_GROUPS),
}
