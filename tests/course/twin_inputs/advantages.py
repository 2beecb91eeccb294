import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from twin_inputs.baselines import group_ids, rewards
from twins import Inputs, masks, tensors

PACKAGE = "grpo_from_scratch.objective.advantages"

INPUTS = {
    f"{PACKAGE}.explained_variance": Inputs(
        st.fixed_dictionaries({"values": tensors(2, 3), "returns": tensors(2, 3), "mask": masks(2, 3)})
    ),
    f"{PACKAGE}.gae": Inputs(
        st.fixed_dictionaries(
            {
                "rewards": tensors(2, 4),
                "values": tensors(2, 4),
                "mask": hnp.arrays(np.bool_, (2, 4)).map(torch.from_numpy),
                "bootstrap_value": st.none() | tensors(2),
                "gamma": st.sampled_from([1.0, 0.9]),
                "lam": st.sampled_from([0.0, 0.5, 0.95, 1.0]),
            }
        )
    ),
    f"{PACKAGE}.group_relative_advantages": Inputs(
        st.fixed_dictionaries(
            {"rewards": rewards(6), "groups": group_ids(6), "scale": st.sampled_from(["group", "batch", "none"])}
        )
    ),
}
