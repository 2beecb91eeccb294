import torch
from hypothesis import strategies as st

from twin_inputs.baselines import group_ids, rewards
from twins import Inputs, tensors

PACKAGE = "grpo_from_scratch.training.instruments"


@st.composite
def judged(draw):
    """Advantages of scored replies; a reply without a score has advantage 0."""
    scores = draw(rewards(6))
    advantages = torch.where(scores.isnan(), 0.0, draw(tensors(6)))
    return {"advantages": advantages, "scores": scores, "prompts": draw(group_ids(6))}


INPUTS = {f"{PACKAGE}.advantage_metrics": Inputs(judged())}
