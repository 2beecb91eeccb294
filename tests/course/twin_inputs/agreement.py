import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from twins import Inputs

PACKAGE = "grpo_from_scratch.evaluation.agreement"

# of few values, so that raters agree now and then; NaN is a missing rating
ratings = hnp.arrays(np.float64, (3, 4), elements=st.sampled_from([0.0, 1.0, 2.0, 5.0, np.nan]), fill=st.nothing())

INPUTS = {
    f"{PACKAGE}.krippendorff_alpha": Inputs(
        st.fixed_dictionaries({"ratings": ratings, "level": st.sampled_from(["nominal", "ordinal", "interval"])})
    ),
}
