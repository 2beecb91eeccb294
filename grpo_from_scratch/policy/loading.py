"""Where a policy comes from: a local Hugging Face folder, the hub, a GGUF file, or the embedded tiny model."""

import importlib.util
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    GgufConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PretrainedConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from grpo_from_scratch.dialogue.corpus import vocabulary
from grpo_from_scratch.dialogue.dataset import BOT, USER
from grpo_from_scratch.distributed.randomness import key_seed
from grpo_from_scratch.policy.lora import merged
from grpo_from_scratch.policy.sampling import stop_tokens

SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>", "<unk>", USER, BOT)
GENERIC_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
UNPACKED = ("fp8", "mxfp4")  # quantised weights that transformers turns back into floats: DeepSeek's and GPT-OSS's
WORD = Regex(r"\w+(?:['’-]\w+)*|[^\w\s]")  # "don't" and "well-known" are one word each


def load_policy(
    name_or_path: str | Path, *, device: str | torch.device | None = None, dtype: torch.dtype | None = None
) -> tuple[nn.Module, PreTrainedTokenizerFast]:
    """A causal LM and its tokenizer, ready to be sampled from and trained.

    Args:
        name_or_path: "tiny" (the embedded model, random weights), a local Hugging Face folder, a hub id (downloaded
            unless it is in the local cache), or a GGUF file.
        device: the first GPU if there is one, else the CPU.
        dtype: of the weights; float32 by default, since an optimizer needs float32 weights (autocast does the rest).

    Weights are read from safetensors or GGUF, never from a pickle, and code that comes with a model is never run.
    Quantised ones become floats again, rounded as they are: an optimizer's steps are finer than their grid.

    Raises:
        ValueError: nothing usable is found there; one sentence says what is missing.
        ImportError: a GGUF file without the package that reads it.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    dtype = dtype or torch.float32
    if str(name_or_path) == "tiny":
        model, tokenizer = new_tiny_policy(vocabulary())
        return model.to(device, dtype), tokenizer
    model, tokenizer = _local_first(name_or_path, partial(_read, name_or_path, dtype))
    _complete(tokenizer, model, name_or_path)
    return model.to(device), tokenizer


def skeleton(name_or_path: str | Path) -> nn.Module:
    """The model that ``load_policy`` would load, for the names and shapes of its weights: it has none of its numbers.

    Raises:
        ValueError: no model is found there; one sentence says what is missing.
    """
    if str(name_or_path) == "tiny":
        return new_tiny_policy(vocabulary())[0]
    where, options = _located(name_or_path)
    read = partial(AutoConfig.from_pretrained, where, trust_remote_code=False, **options)
    config = _local_first(name_or_path, read)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def new_tiny_policy(
    texts: Iterable[str],
    *,
    seed: int = 0,
    hidden_size: int = 96,
    layers: int = 2,
    heads: int = 4,
    max_vocab: int | None = None,
) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    """A small Llama with random weights and a tokenizer of the words in ``texts``.

    Words are lower-cased, and a punctuation mark is a word of its own. The most frequent ones get an id, at most
    ``max_vocab`` ids with the special tokens; every other word becomes <unk>. The tokenizer puts <bos> in front.
    """
    tokenizer = _word_tokenizer(texts, max_vocab)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=3 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.05,  # the usual 0.02 is for models a hundred times wider
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key_seed(seed, "tiny policy"))
        model = LlamaForCausalLM(config)
    return model.eval(), tokenizer


def save_policy(
    model: nn.Module, tokenizer: PreTrainedTokenizerFast, folder: str | Path, *, write: bool = True
) -> None:
    """A plain Hugging Face folder (config, safetensors, tokenizer), as ``load_policy`` and transformers read it.

    LoRA's additions are added to the weights. All ranks call it for a model that is sharded over them; those with
    ``write=False`` only give their parts.
    """
    model = model.module if isinstance(model, DistributedDataParallel) else model
    weights = merged(model)
    if not write:
        return
    folder = Path(folder)
    unfinished = folder / ".partial"
    model.save_pretrained(unfinished, state_dict=weights)
    tokenizer.save_pretrained(unfinished)
    for file in unfinished.iterdir():  # only now, since a full disk must not leave half a policy over a whole one
        file.replace(folder / file.name)
    unfinished.rmdir()


def _local_first(name_or_path: str | Path, read: Callable[..., Any]) -> Any:
    """What ``read`` makes of the folder or the cache if they have it, else of the hub.

    Raises:
        ValueError: of none of them; one sentence says why.
    """
    _check_path(name_or_path)
    try:
        try:
            return read(local_files_only=True)
        except OSError:
            if Path(name_or_path).exists():
                raise
        _ask_hub(name_or_path)
        return read(local_files_only=False)
    except Exception as error:  # a wrong setting in a config makes transformers fail in any way
        raise ValueError(_why_not(name_or_path, error)) from error


def _ask_hub(name_or_path: str | Path) -> None:
    try:
        HfApi().model_info(str(name_or_path), timeout=10)  # asks once, where from_pretrained would retry for a minute
    except Exception as error:  # the HTTP client's, which differs between versions of the hub's library
        raise OSError(f"the hub answered with {type(error).__name__}") from error


def _read(name_or_path: str | Path, dtype: torch.dtype, **options):
    options["trust_remote_code"] = False
    if _is_gguf(name_or_path):
        folder, file = _located(name_or_path)
        model = _weights(folder, dtype, quantization_config=GgufConfig(dequantize=True), **file, **options)
        return model, AutoTokenizer.from_pretrained(folder, **file, **options)
    # A tokenizer that says it is generic is what its tokenizer.json says. AutoTokenizer would rebuild it as the class
    # usual for the model's architecture, and a word-level tokenizer beside a Qwen2 would silently lose its words.
    declared = get_tokenizer_config(name_or_path, **options).get("tokenizer_class")
    reader = PreTrainedTokenizerFast if declared in GENERIC_TOKENIZERS else AutoTokenizer
    tokenizer = reader.from_pretrained(name_or_path, **options)
    options["config"] = _unpacking(AutoConfig.from_pretrained(name_or_path, **options))
    return _weights(name_or_path, dtype, use_safetensors=True, **options), tokenizer


def _weights(name_or_path: str | Path, dtype: torch.dtype, **options) -> nn.Module:
    """The model, of which no weight was left to chance."""
    model, found = AutoModelForCausalLM.from_pretrained(name_or_path, dtype=dtype, output_loading_info=True, **options)
    if missing := sorted(found["missing_keys"]):
        raise ValueError(f"its files lack {len(missing)} of the model's weights, the first of them {missing[0]}")
    return model


def _unpacking(config: PretrainedConfig) -> PretrainedConfig:
    """The config, which now asks for float weights where the saved ones are quantised."""
    packed = getattr(config, "quantization_config", None)
    if packed is None:
        return config
    if packed.get("quant_method") not in UNPACKED:
        raise ValueError(
            f"its weights are quantised by {packed.get('quant_method')!r}, which cannot be trained; take a version of "
            "the model with float weights"
        )
    packed["dequantize"] = True
    return config


def _word_tokenizer(texts: Iterable[str], max_vocab: int | None) -> PreTrainedTokenizerFast:
    normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    splitter = pre_tokenizers.Split(WORD, behavior="removed", invert=True)
    counts = Counter(word for text in texts for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)))
    by_frequency = sorted(counts, key=lambda word: (-counts[word], word))
    room = None if max_vocab is None else max_vocab - len(SPECIAL_TOKENS)
    words = [*SPECIAL_TOKENS, *by_frequency[:room]]
    backend = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="<unk>"))
    backend.normalizer, backend.pre_tokenizer = normalizer, splitter
    backend.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", words.index("<bos>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        extra_special_tokens=["<user>", "<bot>"],
        clean_up_tokenization_spaces=False,
    )


def _is_gguf(name_or_path: str | Path) -> bool:
    return Path(name_or_path).suffix == ".gguf"


def _located(name_or_path: str | Path) -> tuple[str | Path, dict[str, str]]:
    """The folder or hub id for ``from_pretrained``, and its keyword if a file there is meant."""
    path = Path(name_or_path)
    return (path.parent, {"gguf_file": path.name}) if _is_gguf(path) else (name_or_path, {})


def _check_path(name_or_path: str | Path) -> None:
    path = Path(name_or_path)
    if path.is_dir() and not (path / "config.json").is_file():
        raise ValueError(f"the folder '{path}' holds no Hugging Face model: it has no config.json.")
    looks_local = isinstance(name_or_path, Path) or str(name_or_path).startswith((".", "/", "~"))
    if _is_gguf(path):
        if not path.is_file():
            raise ValueError(f"there is no file '{path}'.")
        if importlib.util.find_spec("gguf") is None:
            raise ImportError("a GGUF file is read by the package gguf: pip install 'grpo-from-scratch[gguf]'")
    elif not path.is_dir() and (looks_local or str(name_or_path).count("/") > 1):
        raise ValueError(f"there is no folder '{path}': give a Hugging Face model folder, a hub id or 'tiny'.")


def _why_not(name_or_path: str | Path, error: Exception) -> str:
    if "trust_remote_code" in str(error):
        return f"'{name_or_path}' needs code of its own, which is never run here: use an architecture of transformers."
    if Path(name_or_path).exists():
        why = error if isinstance(error, OSError | ValueError) else f"{type(error).__name__}: {error}"
        return f"'{name_or_path}' cannot be loaded as a causal language model: {why}"
    return (
        f"'{name_or_path}' is neither 'tiny' nor a local folder; as a hub id it is not in the cache, and {error}: "
        "check the name, or download it where there is a network and give its folder."
    )


def _complete(tokenizer, model: nn.Module, name: str | Path) -> None:
    """What a policy needs and not every model comes with; a saved policy then has it for whoever loads it."""
    if tokenizer.eos_token_id is None:
        raise ValueError(f"the tokenizer of '{name}' has no end-of-sequence token, without which no reply ever ends.")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token  # masks go by position, so a shared id is harmless, a new one is not
    rows = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer of '{name}' has {len(tokenizer)} tokens but its model embeds only {rows}: "
            "they do not belong together, or the model was not resized."
        )
    if hasattr(model.config, "auto_map"):
        del model.config.auto_map  # names code that came with the model and stays behind
    ends = getattr(model.generation_config, "eos_token_id", None)
    if any(type(end) is not int for end in (ends if isinstance(ends, list) else [ends]) if end is not None):
        raise ValueError(f"the generation config of '{name}' has the eos_token_id {ends!r}; expected ids of tokens.")
    stops, generation = stop_tokens(model, tokenizer).tolist(), model.generation_config
    try:
        generation.validate(strict=True)
    except ValueError:  # published ones often are not; transformers reads them, but would refuse to save the policy
        generation = model.generation_config = GenerationConfig(bos_token_id=generation.bos_token_id)
    generation.eos_token_id = stops[0] if len(stops) == 1 else stops
    if generation.pad_token_id is None:
        generation.pad_token_id = tokenizer.pad_token_id
    if not tokenizer.chat_template and USER not in tokenizer.get_vocab():
        warnings.warn(
            f"the tokenizer of '{name}' has no chat template, so its prompts are plain text, "
            f'"background {USER} turn {BOT} turn {USER} turn {BOT}", in training and in use',
            stacklevel=3,
        )
