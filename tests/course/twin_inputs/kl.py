from hypothesis import strategies as st

from twin_inputs.surrogates import every
from twins import Inputs, tensors

PACKAGE = "grpo_from_scratch.objective.kl"

INPUTS = {
    f"{PACKAGE}.kl_estimate": Inputs(
        st.fixed_dictionaries(
            {
                "logps": tensors(2, 3, low=-15.0, high=0.0),  # log-ratios beyond 10, too
                "ref_logps": tensors(2, 3, low=-15.0, high=0.0),
                "ratio": tensors(2, 3, low=0.125, high=4.0),
            }
        ),
        gradients=("logps", "ratio"),
        call=every("kind", "k1", "k2", "k3", "k3_weighted"),
    ),
}
