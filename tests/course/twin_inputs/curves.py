import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from twins import Inputs

PACKAGE = "grpo_from_scratch.evaluation.curves"


def curve(count: int) -> st.SearchStrategy[np.ndarray]:
    """(count,) of tenths, so that a curve meets a target exactly now and then."""
    return hnp.arrays(np.int64, count, elements=st.integers(0, 10), fill=st.nothing()).map(lambda tenths: tenths / 10)


INPUTS = {
    f"{PACKAGE}.reach": Inputs(
        st.fixed_dictionaries(
            {"x": st.just(np.arange(5) * 128.0), "curve": curve(5), "target": st.integers(1, 10).map(lambda n: n / 10)}
        ),
        call=lambda reach, arguments: torch.tensor(float(reach(**arguments))),
    ),
}
