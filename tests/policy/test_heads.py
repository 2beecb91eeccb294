import copy

import pytest
import torch
from families import model_of, plain_scores, random_rollout, unpadded

from grpo_from_scratch.policy.heads import GRPOPolicy

pytestmark = pytest.mark.usefixtures("path")


@pytest.fixture(scope="module")
def ragged():
    return random_rollout([7, 3, 1], [[5, 1, 9], [4], [2, 8]])


def with_random_head(model) -> GRPOPolicy:
    policy = GRPOPolicy(copy.deepcopy(model))
    with torch.no_grad():
        policy.value_head.weight.copy_(torch.linspace(-1, 1, policy.value_head.in_features))
        policy.value_head.bias.fill_(0.3)
    return policy


def test_token_values_starts_at_zero(model, ragged):
    policy = GRPOPolicy(model)
    assert (policy.token_values(ragged) == 0).all()
    assert (policy(ragged.prompt_ids, ragged.prompt_mask) == 0).all()


def test_token_values_equals_plain_forward(model, ragged):
    """LP-01 for values: those of each row alone, before each token, and 0 behind the mask."""
    policy = with_random_head(model)
    expected = policy.value_head(plain_scores(policy.lm, ragged).hidden)[..., 0]
    expected = torch.where(ragged.completion_mask, expected, 0)
    values = policy.token_values(ragged)
    torch.testing.assert_close(values, expected, atol=1e-5, rtol=1e-5)
    assert values.shape == ragged.completion_ids.shape and values.dtype == torch.float32


@pytest.mark.parametrize("side", ["left", "right", "none"])
def test_forward_last_real_token(model, ragged, side):
    """The value at the last real token, whichever side the padding is on."""
    policy = with_random_head(model)
    for prompt, _ in unpadded(ragged):
        pad = [] if side == "none" else [0] * 4
        row, mask = (
            ([*pad, *prompt], [0] * len(pad) + [1] * len(prompt))
            if side == "left"
            else (
                [*prompt, *pad],
                [1] * len(prompt) + [0] * len(pad),
            )
        )
        states = policy.lm(input_ids=torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1]
        value = policy(torch.tensor([row]), torch.tensor([mask]))
        assert value.shape == (1, 1)
        torch.testing.assert_close(value, policy.value_head(states[:, -1]), atol=1e-5, rtol=1e-5)


def test_token_values_first_equals_forward(llama, ragged):
    """V before the first token is the value of the prompt."""
    policy = with_random_head(llama)
    prompts = policy(ragged.prompt_ids, ragged.prompt_mask)[:, 0]
    torch.testing.assert_close(policy.token_values(ragged)[:, 0], prompts[ragged.prompt_index], atol=1e-5, rtol=1e-5)


def test_token_values_trains_head_and_body(llama, ragged):
    policy = with_random_head(llama)
    policy.token_values(ragged).square().sum().backward()
    for part in (policy.value_head.weight, policy.value_head.bias, policy.lm.model.layers[0].mlp.up_proj.weight):
        assert part.grad.isfinite().all() and part.grad.abs().sum() > 0


def test_grpo_policy_from_name_and_half_precision(ragged):
    assert GRPOPolicy("tiny").lm.config.model_type == "llama"
    policy = GRPOPolicy(copy.deepcopy(model_of("llama")).bfloat16())
    assert policy.token_values(ragged).dtype == policy.value_head.weight.dtype == torch.float32
