import torch
from hypothesis import strategies as st

from twins import Inputs, tensors

PACKAGE = "grpo_from_scratch.policy.sampling"
UNIFORMS = st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=2)

INPUTS = {
    f"{PACKAGE}.draw": Inputs(
        st.fixed_dictionaries(
            {
                "logits": tensors(2, 4),
                "uniforms": UNIFORMS.map(lambda numbers: torch.tensor(numbers, dtype=torch.float64)),
                "temperature": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
            }
        )
    ),
}
