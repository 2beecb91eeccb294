import torch
from hypothesis import strategies as st
from twins import Inputs, masks, tensors

PACKAGE = "grpo_from_scratch.objective.surrogates"


@st.composite
def reinforce(draw):
    mask = draw(masks(2, 3))
    logps, advantages = draw(tensors(2, 3, high=0.0)), draw(tensors(2) | tensors(2, 3))
    if draw(st.booleans()):  # padding may hold anything
        logps = logps.masked_fill(~mask, torch.nan)
        advantages = advantages if advantages.dim() == 1 else advantages.masked_fill(~mask, torch.nan)
    return {"logps": logps, "advantages": advantages, "mask": mask}


@st.composite
def losses(draw):
    mask, how = draw(masks(2, 3)), draw(HOW)
    per_token = draw(tensors(2, 3))
    if draw(st.booleans()):  # padding may hold anything
        per_token = per_token.masked_fill(~mask, torch.nan)
    denominator = draw(st.none() | st.sampled_from([0, 0.5, 3]).map(torch.tensor))  # below one: DDP with few tokens
    return {"per_token": per_token, "mask": mask, "how": how, "denominator": denominator, "max_new_tokens": 4}


HOW = st.sampled_from(["sequence", "token", "constant"])

INPUTS = {
    f"{PACKAGE}.reinforce_surrogate": Inputs(reinforce(), gradients=("logps",)),
    f"{PACKAGE}.loss_denominator": Inputs(
        st.fixed_dictionaries({"mask": masks(2, 3), "how": HOW, "max_new_tokens": st.just(4)})
    ),
    f"{PACKAGE}.aggregate": Inputs(losses(), gradients=("per_token",)),
}
