import torch
from hypothesis import strategies as st

from twin_inputs.baselines import REWARDS_IN_GROUPS
from twins import Inputs

PACKAGE = "grpo_from_scratch.objective.groups"


def batches(seed: int) -> torch.Tensor:
    """float32 (3 batches, 9 replies, 2): without structure, so that KMeans numbers and places its groups anew."""
    return torch.randn(3, 9, 2, generator=torch.Generator().manual_seed(seed))


def in_turn(groups, arguments):
    """The ids of every batch, from one object that remembers."""
    remembering = groups(arguments["num_groups"], seed=arguments["seed"])
    return [remembering.assign(batch) for batch in arguments["embeddings"]]


INPUTS = {
    f"{PACKAGE}.icc": Inputs(REWARDS_IN_GROUPS),
    f"{PACKAGE}.SemanticGroups": Inputs(
        st.fixed_dictionaries(
            {
                "num_groups": st.integers(1, 4),
                "seed": st.integers(0, 3),
                "embeddings": st.integers(0, 10_000).map(batches),
            }
        ),
        call=in_turn,
    ),
}
