from hypothesis import strategies as st

from grpo_from_scratch.dialogue.dataset import Example
from grpo_from_scratch.policy.loading import new_tiny_policy
from twins import Inputs

PACKAGE = "grpo_from_scratch.dialogue.dataset"
_, TOKENIZER = new_tiny_policy(["i have two cats . hello ?"], hidden_size=4, layers=1, heads=1)

# "dogs" is no word of the tokenizer's, and a text may hold an EOS of its own
TEXTS = st.lists(st.sampled_from(["i", "have", "two", "cats", "dogs", ".", "?", "<eos>"]), min_size=1, max_size=4).map(
    " ".join
)


def tuples(least: int, most: int) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(TEXTS, min_size=least, max_size=most).map(tuple)


EXAMPLES = st.builds(
    Example, turns=tuples(1, 3), references=tuples(1, 2), background=tuples(0, 2), responses=tuples(0, 2)
)


@st.composite
def items(draw):
    """A batch: rows of ids and labels, of one length each."""
    row = st.lists(st.tuples(st.integers(0, 9), st.sampled_from([-100, 0, 5])), min_size=1, max_size=4)
    rows = draw(st.lists(row, min_size=1, max_size=3))
    batch = [{"input_ids": [i for i, _ in pairs], "labels": [label for _, label in pairs]} for pairs in rows]
    return {"batch": batch, "pad_id": draw(st.integers(0, 9))}


def list_of(dataset):
    return [dataset[index] for index in range(len(dataset))]


INPUTS = {
    f"{PACKAGE}.encode_prompt": Inputs(
        st.fixed_dictionaries(
            {"example": EXAMPLES, "tokenizer": st.just(TOKENIZER), "max_tokens": st.none() | st.integers(1, 12)}
        )
    ),
    f"{PACKAGE}.encode_reply": Inputs(st.fixed_dictionaries({"reply": TEXTS, "tokenizer": st.just(TOKENIZER)})),
    f"{PACKAGE}.DialogDataset": Inputs(
        st.fixed_dictionaries(
            {
                "examples": st.lists(EXAMPLES, max_size=2),
                "tokenizer": st.just(TOKENIZER),
                "max_tokens": st.integers(2, 12),
            }
        ),
        call=lambda build, arguments: list_of(build(**arguments)),
    ),
    f"{PACKAGE}.collate": Inputs(items()),
}
