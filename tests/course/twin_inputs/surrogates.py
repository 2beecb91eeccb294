from hypothesis import strategies as st
from twins import Inputs, masks, tensors

PACKAGE = "grpo_from_scratch.objective.surrogates"

INPUTS = {
    f"{PACKAGE}.reinforce_surrogate": Inputs(
        st.fixed_dictionaries(
            {"logps": tensors(2, 3, high=0.0), "advantages": tensors(2) | tensors(2, 3), "mask": masks(2, 3)}
        ),
        gradients=("logps",),
    ),
}
