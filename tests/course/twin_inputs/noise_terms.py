from hypothesis import strategies as st

from twins import Inputs

PACKAGE = "grpo_from_scratch.evaluation.noise_terms"

TERMS = st.fixed_dictionaries({name: st.floats(-3, 3) for name in ("H", "V", "T", "S_W", "S_WF")})
NOISE = Inputs(st.fixed_dictionaries({"known": TERMS, "group_size": st.integers(2, 16)}))

INPUTS = {f"{PACKAGE}.global_noise": NOISE, f"{PACKAGE}.group_noise": NOISE}
