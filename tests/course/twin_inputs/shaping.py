import torch
from hypothesis import strategies as st

from twins import Inputs

PACKAGE = "grpo_from_scratch.objective.shaping"


@st.composite
def lengths(draw):
    limit = draw(st.integers(1, 9))
    drawn = draw(st.lists(st.integers(0, limit), min_size=4, max_size=4))
    return {"lengths": torch.tensor(drawn), "max_new_tokens": limit, "buffer": draw(st.integers(1, limit))}


INPUTS = {f"{PACKAGE}.overlong_penalty": Inputs(lengths())}
