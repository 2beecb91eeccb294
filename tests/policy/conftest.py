import warnings

import pytest
import torch
from families import PLAIN, model_of
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from grpo_from_scratch.policy.loading import new_tiny_policy
from grpo_from_scratch.policy.shared_prefix import shared_prefix

torch.set_num_threads(1)

WORDS = [f"word{index}" for index in range(55)]  # with six special tokens, the 61 ids of every tiny model


@pytest.fixture(scope="session")
def tokenizer():
    return new_tiny_policy(WORDS)[1]


@pytest.fixture(scope="session", params=PLAIN)
def model(request):
    """Llama, Qwen2, GPT-2 and DeepSeek-V3 in turn."""
    return model_of(request.param)


@pytest.fixture(scope="session")
def llama():
    return model_of("llama")


@pytest.fixture(scope="session")
def byte_tokenizer():
    """GPT-2's kind: one token a byte, an end-of-text token, no pad token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")


@pytest.fixture(params=["packed", "padded"])
def path(request):
    """The same test with each prompt computed once per group, and once per completion."""
    with shared_prefix(request.param == "packed"), warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*computes a prompt for each completion")  # not packed after all
        yield request.param
