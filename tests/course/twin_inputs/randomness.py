from hypothesis import strategies as st

from twins import Inputs

PACKAGE = "grpo_from_scratch.distributed.randomness"

KEYS = {"seed": st.integers(0, 5), "step": st.integers(0, 5), "indices": st.lists(st.integers(0, 300), max_size=4)}
INPUTS = {f"{PACKAGE}.completion_uniforms": Inputs(st.fixed_dictionaries(KEYS | {"count": st.integers(0, 5)}))}
