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


INPUTS = {f"{PACKAGE}.reinforce_surrogate": Inputs(reinforce(), gradients=("logps",))}
