import torch
from hypothesis import strategies as st

from twins import Inputs, tensors

PACKAGE = "grpo_from_scratch.policy.sampling"
# .5 is exactly where a stretch ends, when all four are equally long
UNIFORMS = st.lists(st.floats(0, 1, exclude_max=True) | st.just(0.5), min_size=2, max_size=2)

INPUTS = {
    f"{PACKAGE}.draw": Inputs(
        st.fixed_dictionaries(
            {
                "logits": tensors(2, 4) | st.just(torch.zeros(2, 4)),
                "uniforms": UNIFORMS.map(lambda numbers: torch.tensor(numbers, dtype=torch.float64)),
                "temperature": st.sampled_from([0.0, 0.5, 1.0, 2.0]),
            }
        )
    ),
}
