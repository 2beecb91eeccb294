from hypothesis import strategies as st

from twin_inputs.rewards import texts
from twins import Inputs

PACKAGE = "grpo_from_scratch.evaluation.text"

INPUTS = {
    f"{PACKAGE}.corpus_bleu": Inputs(
        st.lists(st.tuples(texts(0), st.lists(texts(0), min_size=1, max_size=3)), min_size=1, max_size=4).map(
            lambda rows: {"hypotheses": [text for text, _ in rows], "references": [good for _, good in rows]}
        )
    ),
    f"{PACKAGE}.distinct_n": Inputs(
        st.fixed_dictionaries({"texts": st.lists(texts(0), max_size=4), "n": st.integers(1, 3)})
    ),
}
