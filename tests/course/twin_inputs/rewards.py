from hypothesis import strategies as st

from twins import Inputs

PACKAGE = "grpo_from_scratch.rewards"


def texts(least: int) -> st.SearchStrategy[str]:
    """Of few words, so that n-grams repeat and match."""
    return st.lists(st.sampled_from(["i", "have", "two", "cats", "."]), min_size=least, max_size=6).map(" ".join)


# Latin and Chinese, with and without blanks between the characters
mixed = st.lists(st.sampled_from(["i ", "Have ", "two ", "cats, ", ". ", "我", "喜", "欢 ", "。"]), max_size=6).map(
    "".join
)

INPUTS = {
    f"{PACKAGE}.sentence_bleu": Inputs(
        st.fixed_dictionaries({"hypothesis": texts(0), "references": st.lists(texts(1), min_size=1, max_size=3)})
    ),
    f"{PACKAGE}.rouge_l": Inputs(st.fixed_dictionaries({"hypothesis": mixed, "reference": mixed})),
}
