from hypothesis import strategies as st

from grpo_from_scratch.distributed.process_group import World
from twins import Inputs

PACKAGE = "grpo_from_scratch.distributed.share"


def dealt(contiguous, arguments):
    share = contiguous(World(size=arguments.pop("size")), **arguments)
    return share.owner, share.unit


SHAPES = {"size": st.integers(1, 5), "units": st.integers(0, 9), "rows_per_unit": st.integers(1, 7)}
INPUTS = {f"{PACKAGE}.contiguous": Inputs(st.fixed_dictionaries(SHAPES), call=dealt)}
