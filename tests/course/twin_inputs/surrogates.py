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
    mask, per_token = draw(masks(2, 3)), draw(tensors(2, 3))
    if draw(st.booleans()):  # padding may hold anything
        per_token = per_token.masked_fill(~mask, torch.nan)
    denominator = draw(st.none() | st.sampled_from([0, 0.5, 3]).map(torch.tensor))  # below one: DDP with few tokens
    return {"per_token": per_token, "mask": mask, "denominator": denominator, "max_new_tokens": 4}


@st.composite
def ratios(draw, **more):
    """Log-probs under two policies, with anything behind the mask."""
    mask = draw(masks(2, 3))
    logps, old_logps = (draw(tensors(2, 3, high=0.0)).masked_fill(~mask, draw(ANYTHING)) for _ in range(2))
    return {"logps": logps, "old_logps": old_logps, "mask": mask} | {name: draw(make) for name, make in more.items()}


def every(option, *choices):
    """Call with each of the choices, whatever few examples are drawn."""
    return lambda function, arguments: {choice: function(**arguments, **{option: choice}) for choice in choices}


EVERY_AVERAGE = every("how", "sequence", "token", "constant")
ANYTHING = st.sampled_from([0.0, torch.nan, -torch.inf])
ADVANTAGES = tensors(2) | tensors(2, 3)
CLIP = st.sampled_from([0.0625, 0.25, 0.5])

INPUTS = {
    f"{PACKAGE}.reinforce_surrogate": Inputs(reinforce(), gradients=("logps",)),
    f"{PACKAGE}.loss_denominator": Inputs(
        st.fixed_dictionaries({"mask": masks(2, 3), "max_new_tokens": st.just(4)}), call=EVERY_AVERAGE
    ),
    f"{PACKAGE}.aggregate": Inputs(losses(), gradients=("per_token",), call=EVERY_AVERAGE),
    f"{PACKAGE}.importance_ratio": Inputs(
        ratios(), gradients=("logps", "old_logps"), call=every("level", "token", "sequence")
    ),
    f"{PACKAGE}.clipped_surrogate": Inputs(
        ratios(advantages=ADVANTAGES, clip_low=CLIP, clip_high=CLIP), gradients=("logps", "old_logps", "advantages")
    ),
    f"{PACKAGE}.cispo_surrogate": Inputs(
        ratios(advantages=ADVANTAGES, clip_high=CLIP), gradients=("logps", "old_logps", "advantages")
    ),
}
