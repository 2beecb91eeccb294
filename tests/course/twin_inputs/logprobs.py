import torch
from hypothesis import strategies as st

from twins import Inputs, masks, tensors

PACKAGE = "grpo_from_scratch.policy.logprobs"


def with_impossible(pair):
    logits, possible = pair
    possible = possible | (torch.arange(possible.shape[1]) == 0)  # at least one token of each row can come
    return {"log_probs": torch.where(possible, logits, -torch.inf).log_softmax(-1)}


INPUTS = {
    f"{PACKAGE}.token_entropy": Inputs(
        st.tuples(tensors(2, 4), masks(2, 4)).map(with_impossible),
        gradients=("log_probs",),
    ),
}
