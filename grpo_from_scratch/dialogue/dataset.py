"""One dialogue example, its prompt, and the dataset fine-tuning reads.

A tokenizer with a chat template gets that template, exactly once. A tokenizer without one (a base model, the embedded
tiny one) gets this fallback, the same in training, sampling and evaluation:

    <background> <user> turn <bot> turn <user> turn <bot>
"""

import dataclasses
import hashlib
from dataclasses import dataclass

import torch
from jinja2 import TemplateError
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

USER, BOT = "<user>", "<bot>"
IGNORED = -100  # the label that cross-entropy leaves out
SPLITS = ("train", "tuning", "report")  # report numbers come from contexts that no training and no tuning has seen


@dataclass(frozen=True)
class Example:
    """What is said, what would be a good reply, and what is known about it."""

    turns: tuple[str, ...]  # the conversation, oldest first; the last one is what the reply answers
    references: tuple[str, ...]  # good replies, at least one
    background: tuple[str, ...] = ()  # persona or knowledge lines
    responses: tuple[str, ...] = ()  # what fine-tuning imitates; empty: the references
    facts: tuple[str, ...] = ()  # a reply that keeps to the facts contains one of these
    kind: str = ""  # fact | emotion | advice
    topic: str = ""
    item: str = ""  # the question that a verifiable reward makes again, to judge a reply

    def __post_init__(self):
        for name in ("turns", "references"):
            if isinstance(getattr(self, name), str) or not getattr(self, name):  # a text is no tuple of characters
                raise ValueError(
                    f"an example's {name} must be a tuple of at least one text, got {getattr(self, name)!r}"
                )

    @property
    def imitated(self) -> tuple[str, ...]:
        """The replies that fine-tuning imitates."""
        return self.responses or self.references


def split_of(context: str) -> str:
    """The split a context belongs to, by its hash: 80 % train, 10 % tuning, 10 % report.

    It depends on the text alone, not on a seed or a position, so what is held out stays held out over every run,
    machine and longer version of a file.
    """
    bucket = int.from_bytes(hashlib.blake2b(context.encode(), digest_size=8).digest(), "little") % 10
    return "tuning" if bucket == 8 else "report" if bucket == 9 else "train"


def check_split(split: str) -> None:
    """Refuse a split that does not exist, before anything is read."""
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; there are {', '.join(SPLITS)}")


def columns(examples: list[Example]) -> dict[str, list]:
    """The examples' fields as lists, one entry for each example: what a reward receives as ``**columns``."""
    names = [field.name for field in dataclasses.fields(Example)]
    return {name: [getattr(example, name) for example in examples] for name in names}


def encode_prompt(example: Example, tokenizer: PreTrainedTokenizerBase, max_tokens: int | None = None) -> list[int]:
    """Token ids of everything before the reply, up to and including the mark that opens it.

    Args:
        example: the dialogue; turns alternate, the last one is the user's.
        tokenizer: with a chat template (the background becomes the system message) or without (see the module).
        max_tokens: keep only the last so many, because the end holds what the reply answers.

    Raises:
        ValueError: ``max_tokens`` below 1, or a chat template that refuses the conversation.
    """
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1 to leave a prompt, got {max_tokens}")
    ids = _templated(example, tokenizer) if tokenizer.chat_template else _fallback(example, tokenizer)
    return ids if max_tokens is None else ids[-max_tokens:]


def _fallback(example: Example, tokenizer) -> list[int]:
    marked = [part for pair in zip(_roles(example, USER, BOT), example.turns, strict=True) for part in pair]
    ids = tokenizer(" ".join([*example.background, *marked, BOT])).input_ids  # with BOS where the tokenizer adds one
    # Some tokenizers close every text with EOS; a prompt goes on.
    return ids[:-1] if len(ids) > 1 and ids[-1] == tokenizer.eos_token_id else ids


def _templated(example: Example, tokenizer) -> list[int]:
    """Ids of the rendered chat template. A template without a system role, or one that wants the user to open, gets
    what stands before the first user turn in front of that turn."""
    roles = _roles(example, "user", "assistant")
    messages = [{"role": role, "content": turn} for role, turn in zip(roles, example.turns, strict=True)]
    system = [{"role": "system", "content": "\n".join(example.background)}] if example.background else []
    first = roles.index("user")
    opening = "\n".join([*example.background, *example.turns[: first + 1]])
    folded = [{"role": "user", "content": opening}, *messages[first + 1 :]]
    for conversation in (system + messages, folded):
        try:
            # The template writes BOS itself: tokenizing its text a second time would add another.
            return tokenizer.apply_chat_template(conversation, add_generation_prompt=True, return_dict=False)
        except TemplateError as error:
            refusal = error
    raise ValueError(f"the tokenizer's chat template refuses this conversation: {refusal}") from refusal


def _roles(example: Example, user: str, bot: str) -> list[str]:
    """Who says each turn: they alternate, and the last one is the user's."""
    return [user if (len(example.turns) - i) % 2 else bot for i in range(len(example.turns))]


def encode_reply(reply: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Token ids of a reply as it follows the prompt, closed by exactly one EOS.

    Raises:
        ValueError: the tokenizer has no EOS token, so no reply could ever end.
    """
    if tokenizer.eos_token_id is None:
        raise ValueError("the tokenizer has no eos_token, so a reply could never end; set tokenizer.eos_token")
    text = reply if tokenizer.chat_template else f" {reply}"  # the fallback ends in a mark: the reply is a new word
    ids = tokenizer(text, add_special_tokens=False).input_ids
    return [token for token in ids if token != tokenizer.eos_token_id] + [tokenizer.eos_token_id]


class DialogDataset(Dataset):
    """Prompt and reply as token ids, one item for each (example, response), in the order of the examples.

    An item is ``{"input_ids": list[int], "labels": list[int]}`` of one length: labels are IGNORED over the prompt and
    the ids themselves over the reply and its single EOS. Where both do not fit into ``max_tokens`` the prompt loses its
    beginning; a reply longer than ``max_tokens - 1`` loses its end (and so its EOS: it was not finished). There is
    always at least one label with a token before it to predict it from.

    Raises:
        ValueError: ``max_tokens`` below 2 (one token of prompt, one of reply).
    """

    def __init__(self, examples: list[Example], tokenizer: PreTrainedTokenizerBase, max_tokens: int):
        if max_tokens < 2:
            raise ValueError(f"max_tokens must be at least 2 (one of prompt, one of reply), got {max_tokens}")
        self.pairs = [(example, reply) for example in examples for reply in example.imitated]
        self.tokenizer = tokenizer
        self.max_tokens = max_tokens

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        example, text = self.pairs[index]
        reply = encode_reply(text, self.tokenizer)[: self.max_tokens - 1]
        prompt = encode_prompt(example, self.tokenizer, self.max_tokens - len(reply))
        return {"input_ids": prompt + reply, "labels": [IGNORED] * len(prompt) + reply}


def collate(batch: list[dict[str, list[int]]], pad_id: int) -> dict[str, torch.Tensor]:
    """Right-pad items to int64 ``input_ids``, ``attention_mask`` and ``labels`` of shape (B, T).

    The mask goes by position, so a ``pad_id`` that is also EOS hides no real EOS. A module-level function, so that
    ``functools.partial(collate, pad_id=...)`` pickles into a DataLoader's workers.
    """
    length = max(len(item["input_ids"]) for item in batch)

    def padded(rows: list[list[int]], filler: int) -> torch.Tensor:
        return torch.tensor([row + [filler] * (length - len(row)) for row in rows])  # (B, T)

    ids = [item["input_ids"] for item in batch]
    return {
        "input_ids": padded(ids, pad_id),
        "attention_mask": padded([[1] * len(row) for row in ids], 0),
        "labels": padded([item["labels"] for item in batch], IGNORED),
    }
