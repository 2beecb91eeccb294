import torch
from hypothesis import strategies as st

from grpo_from_scratch.distributed.process_group import World
from twins import Inputs

PACKAGE = "grpo_from_scratch.training.updates"


@st.composite
def pieces(draw):
    """Metrics of pieces with different numbers of tokens, 0 among them; there may be no piece."""
    names = draw(st.lists(st.sampled_from("abc"), unique=True, max_size=2))
    value = st.floats(-2, 2, width=32).map(torch.tensor)
    piece = st.tuples(st.integers(0, 5).map(float), st.fixed_dictionaries(dict.fromkeys(names, value)))
    return {"parts": draw(st.lists(piece, max_size=4)), "world": World()}


INPUTS = {f"{PACKAGE}.weighted_means": Inputs(pieces())}
