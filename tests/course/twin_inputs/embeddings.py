from hypothesis import strategies as st

from twins import Inputs, masks, tensors

PACKAGE = "grpo_from_scratch.policy.embeddings"

INPUTS = {
    f"{PACKAGE}.mean_hidden": Inputs(st.fixed_dictionaries({"hidden": tensors(3, 4, 2), "mask": masks(3, 4)})),
}
