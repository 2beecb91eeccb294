import copy
import json
import warnings

import pytest
import torch
import transformers
from families import (
    COMMON,
    CONFIGS,
    PLAIN,
    UNUSUAL,
    WIDTHS,
    model_of,
    numbered_tokenizer,
    plain_scores,
    random_rollout,
)

from grpo_from_scratch.policy import attention, packing
from grpo_from_scratch.policy.logprobs import completion_logps, hidden_states, score_completions
from grpo_from_scratch.policy.packing import PackedRollout
from grpo_from_scratch.policy.padding import PaddedRollout
from grpo_from_scratch.policy.sampling import sample
from grpo_from_scratch.policy.shared_prefix import arrange, shared_prefix, supported

PROMPTS = [[5, 6, 7, 8, 9, 10, 11], [12], [13, 14, 15]]
everyone = pytest.mark.parametrize("family", CONFIGS)


@pytest.fixture(scope="module")
def ragged():
    """Groups of 1 to 16; windows of 4 tokens lie inside prompts, across their ends, and inside completions."""
    return random_rollout([9, 3, 1, 6], [[7], [1, 2, 3, 4, 5, 6, 7, 8] * 2, [2, 5, 9], [1, 6]])


def gradients(model, logps) -> dict:
    weights = torch.linspace(-1, 1, logps.numel()).view(logps.shape)
    parameters = dict(model.named_parameters())
    found = torch.autograd.grad((logps * weights).sum(), list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, found, strict=True))


def assert_same_gradients(got: dict, expected: dict):
    """Within 1e-5 of each parameter's largest gradient."""
    for name, reference in expected.items():
        assert (got[name] is None) == (reference is None), name
        if reference is not None:
            limit = 1e-5 * max(1.0, reference.abs().max())
            assert (got[name] - reference).abs().max() < limit, name


@everyone
def test_packed_scores_equal_plain_forward(family, ragged):
    """Log-probs within 1e-5 and gradients within 1e-5 of unpadded forwards, each row alone."""
    model = model_of(family)
    assert supported(model) and isinstance(arrange(model, ragged), PackedRollout)
    got, expected = score_completions(model, ragged, hidden=True), plain_scores(model, ragged)
    torch.testing.assert_close(got.logps, expected.logps, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.hidden, expected.hidden, atol=1e-5, rtol=1e-4)
    assert_same_gradients(gradients(model, got.logps), gradients(model, expected.logps))


@everyone
def test_packed_samples_equal_padded(family):
    """Greedy or keyed, ended early or cut: the same tokens as the plain sampler's, and the same log-probs."""
    model = model_of(family)
    for temperature in (0, 1.0):
        rollouts = []
        for packed in (True, False):
            with shared_prefix(packed):
                rollouts.append(
                    sample(
                        model,
                        numbered_tokenizer(),
                        PROMPTS,
                        group_size=[3, 8, 1],
                        max_new_tokens=16,
                        temperature=temperature,
                    )
                )
        assert torch.equal(rollouts[0].completion_ids, rollouts[1].completion_ids)
        assert torch.equal(rollouts[0].completion_mask, rollouts[1].completion_mask)
        torch.testing.assert_close(rollouts[0].logps, rollouts[1].logps, atol=1e-5, rtol=0)


@everyone
def test_packed_scores_half_precision(family, ragged):
    """bfloat16 weights: no further from the float32 log-probs than plain forwards in bfloat16 are."""
    model = copy.deepcopy(model_of(family)).bfloat16()
    assert supported(model)
    with torch.no_grad():
        exact = plain_scores(model_of(family), ragged).logps
        packed, plain = completion_logps(model, ragged)[0], plain_scores(model, ragged).logps
    assert packed.dtype == torch.float32
    assert (packed - exact).abs().mean() < 1.5 * (plain - exact).abs().mean()


@pytest.mark.parametrize("family", PLAIN)
def test_packed_scores_autocast(family, ragged):
    """Under bfloat16 autocast the model is still recognised, and scored in float32 at the end."""
    model = copy.deepcopy(model_of(family))
    with torch.autocast("cpu", torch.bfloat16):
        assert supported(model)
        got = completion_logps(model, ragged)[0]
    assert got.dtype == torch.float32
    with torch.no_grad():
        assert (got - plain_scores(model, ragged).logps)[ragged.completion_mask].abs().mean() < 0.03


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("family", ["llama", "gemma2", "deepseek_v3", "gpt_oss"])
def test_packed_gradients_checkpointed(family, ragged, reentrant):
    """Backward computes the layers again, through the same attention, and gets the same gradients."""
    model = copy.deepcopy(model_of(family)).train()
    assert supported(model)
    expected = gradients(model, completion_logps(model, ragged)[0])
    model.activation_checkpointing_enable({"use_reentrant": reentrant})
    model.enable_input_require_grads()
    computed = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *_: computed.append(1))
    logps, _ = completion_logps(model, ragged)
    weights = torch.linspace(-1, 1, logps.numel()).view(logps.shape)
    (logps * weights).sum().backward()
    assert len(computed) == 2
    assert_same_gradients({name: parameter.grad for name, parameter in model.named_parameters()}, expected)


def test_packed_scores_lora(llama, ragged):
    peft = pytest.importorskip("peft")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = peft.get_peft_model(copy.deepcopy(llama), peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2))
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.3)  # zeros would leave the model as it was
    assert supported(model.get_base_model())
    logps, _ = completion_logps(model, ragged)
    expected = plain_scores(model, ragged).logps
    torch.testing.assert_close(logps, expected, atol=1e-5, rtol=0)
    assert (expected - plain_scores(llama, ragged).logps).abs().max() > 0.01
    torch.testing.assert_close(
        hidden_states(model, ragged), score_completions(model, ragged, hidden=True).hidden, atol=1e-5, rtol=1e-4
    )
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, got, want in zip(
        trained,
        torch.autograd.grad(logps.sum(), trained.values()),
        torch.autograd.grad(expected.sum(), trained.values()),
        strict=True,
    ):
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4, msg=name)


@pytest.mark.parametrize("family", UNUSUAL)
def test_unsupported_takes_the_padded_path(family):
    """Recognised on its own, said once with the reason, and exact all the same."""
    model, rollout = copy.deepcopy(model_of(family)), random_rollout([9, 3, 1], [[7], [1, 2, 3], [2, 5]])
    base = model.config._attn_implementation
    with pytest.warns(
        UserWarning, match=f"computes a prompt for each completion, not once per group: {UNUSUAL[family]}"
    ):
        assert isinstance(arrange(model, rollout), PaddedRollout)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        got = score_completions(model, rollout).logps
        sampled = sample(model, numbered_tokenizer(), PROMPTS, group_size=3, max_new_tokens=9)
    torch.testing.assert_close(got, plain_scores(model, rollout).logps, atol=1e-5, rtol=0)
    torch.testing.assert_close(plain_scores(model, sampled).logps, sampled.logps, atol=1e-5, rtol=0)
    assert model.config._attn_implementation == base


def test_supported_refuses_what_no_batch_can_hold():
    """RWKV reads padding as text: neither path is exact, so there is an error rather than a wrong number."""
    config = transformers.RwkvConfig(**COMMON, hidden_size=32, num_hidden_layers=2)
    with pytest.raises(ValueError, match="RwkvForCausalLM cannot be used in batches"):
        supported(transformers.RwkvForCausalLM(config).eval())


def unsupported_reason(model) -> str:
    with pytest.warns(UserWarning) as caught:
        assert not supported(model)
    return str(caught[0].message)


def test_supported_wrong_numbers(llama, monkeypatch):
    """A packed forward that is off is found out: here completions see the empty cells of shorter prompts."""
    init = packing.Prompts.__init__

    def sees_everything(self, ids, mask):
        init(self, ids, mask)
        self.real = torch.ones_like(self.real)

    monkeypatch.setattr(packing.Prompts, "__init__", sees_everything)
    assert "log-probs differ by" in unsupported_reason(copy.deepcopy(llama))


def test_supported_unknown_keyword(llama):
    """An attention that is asked for something new is not guessed at."""
    model = copy.deepcopy(llama)
    module = model.model.layers[1].self_attn
    module.register_forward_pre_hook(lambda _, args, kwargs: (args, kwargs | {"bias_of_its_own": 1}), with_kwargs=True)
    assert "bias_of_its_own" in unsupported_reason(model)


def test_supported_is_decided_once(llama, monkeypatch):
    model = copy.deepcopy(llama)
    assert supported(model)
    monkeypatch.setattr(model, "forward", None)
    assert supported(model)


def test_supported_name_of_attention_matters(llama):
    """A model whose plain forward pass asks for the name of its attention is left alone."""
    model = copy.deepcopy(llama)
    model.lm_head.register_forward_hook(lambda *args: args[2] * (1 + (model.config._attn_implementation != "sdpa")))
    assert "name of its attention" in unsupported_reason(model)
    assert model.config._attn_implementation == "sdpa"


def test_shared_prefix_switch(llama):
    rollout = random_rollout([3], [[2]])
    with shared_prefix(False):
        assert isinstance(arrange(llama, rollout), PaddedRollout)
        with shared_prefix(True):
            assert isinstance(arrange(llama, rollout), PackedRollout)
    assert isinstance(arrange(llama, rollout), PackedRollout)


@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_attach_leaves_plain_forwards_alone(family, tokenizer, tmp_path):
    """Bit for bit, with and without padding, while generating, in a copy and after saving."""
    before, after = copy.deepcopy(model_of(family)), copy.deepcopy(model_of(family))
    attention.detach(before)
    attention.attach(after)
    ids = torch.tensor([[5, 6, 7, 8], [0, 0, 9, 10]])
    mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
    for model in (after, copy.deepcopy(after)):
        assert torch.equal(model(input_ids=ids).logits, before(input_ids=ids).logits)
        assert torch.equal(
            model(input_ids=ids, attention_mask=mask).logits, before(input_ids=ids, attention_mask=mask).logits
        )
        options = {"attention_mask": mask, "do_sample": False, "max_new_tokens": 5}
        assert torch.equal(model.generate(ids, **options), before.generate(ids, **options))
    after.save_pretrained(tmp_path)
    assert "shared_prefix" not in json.dumps(json.loads((tmp_path / "config.json").read_text()))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(loaded(input_ids=ids).logits, before(input_ids=ids).logits)


def test_packed_attention_refuses_other_shapes():
    """An attention that cuts the row into batches or lays another mask over the causal one cannot be packed."""
    attention.attach(copy.deepcopy(model_of("llama")))
    attend = transformers.AttentionInterface()[attention.PREFIX + "sdpa"]
    heads, module = torch.zeros(2, 4, 3, 8), model_of("llama").model.layers[0].self_attn
    with pytest.raises(attention.Unsupported, match="reshapes the row"):
        attend(module, heads, heads, heads, lambda *_: True, shared_prefix=object())

    def with_overlay(**_):
        mask = transformers.AttentionMaskInterface()[attention.PREFIX + "sdpa"]
        return mask(mask_function=lambda *_: True, use_vmap=True)

    with pytest.raises(attention.Unsupported, match="a mask of its own"):
        attention.packed_forward(with_overlay, torch.tensor([5]), torch.tensor([0]), None)


def test_attach_dropout_refused():
    """A packed forward with dropout inside attention would be silently without it."""
    config = transformers.LlamaConfig(**WIDTHS, **COMMON, attention_dropout=0.1)
    model = transformers.LlamaForCausalLM(config).eval()
    assert supported(model)
    packed = PackedRollout(random_rollout([3], [[2]]))
    with pytest.raises(attention.Unsupported, match="dropout"):
        packed.logits(model.train())
