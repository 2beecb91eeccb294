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


REWARDS_IN_GROUPS = st.fixed_dictionaries({"rewards": rewards(6), "groups": group_ids(6)})

INPUTS = {
    f"{PACKAGE}.batch_mean": Inputs(st.fixed_dictionaries({"rewards": rewards(4)})),
    f"{PACKAGE}.group_mean": Inputs(REWARDS_IN_GROUPS),
    f"{PACKAGE}.leave_one_out": Inputs(REWARDS_IN_GROUPS),
}
