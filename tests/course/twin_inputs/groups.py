from twin_inputs.baselines import REWARDS_IN_GROUPS
from twins import Inputs

PACKAGE = "grpo_from_scratch.objective.groups"

INPUTS = {f"{PACKAGE}.icc": Inputs(REWARDS_IN_GROUPS)}
