from hypothesis import strategies as st

from twins import Inputs

PACKAGE = "grpo_from_scratch.training.schedule"


@st.composite
def runs(draw):
    """A place in a run: warming up, going down, or past the end."""
    total = draw(st.integers(1, 12))
    return {"update": draw(st.integers(0, total + 2)), "warmup": draw(st.integers(0, total)), "total": total}


INPUTS = {f"{PACKAGE}.warmup_cosine": Inputs(runs())}
