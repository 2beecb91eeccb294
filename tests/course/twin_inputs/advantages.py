from hypothesis import strategies as st

from twin_inputs.baselines import group_ids, rewards
from twins import Inputs, masks, tensors

PACKAGE = "grpo_from_scratch.objective.advantages"

INPUTS = {
    f"{PACKAGE}.explained_variance": Inputs(
        st.fixed_dictionaries({"values": tensors(2, 3), "returns": tensors(2, 3), "mask": masks(2, 3)})
    ),
    f"{PACKAGE}.group_relative_advantages": Inputs(
        st.fixed_dictionaries(
            {"rewards": rewards(6), "groups": group_ids(6), "scale": st.sampled_from(["group", "batch", "none"])}
        )
    ),
}
