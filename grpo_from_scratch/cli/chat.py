"""``grpo chat``: talk to a policy."""

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated

import torch
import typer
from torch import nn

from grpo_from_scratch.cli.app import Threads, app, plain_errors, printable
from grpo_from_scratch.dialogue.dataset import Example, encode_prompt
from grpo_from_scratch.policy.loading import load_policy
from grpo_from_scratch.policy.sampling import sample

HELP = "/reset begins anew, /quit leaves; Ctrl-C breaks off a reply."


@app.command()
def chat(
    model: Annotated[str, typer.Argument(help="A Hugging Face folder, a GGUF file or a hub id.")],
    persona: Annotated[
        list[str] | None, typer.Option(help="A line about the speaker, or what it knows; may be repeated.")
    ] = None,
    temperature: Annotated[
        float, typer.Option(help="1: as it was trained; 0: the likeliest token each time.", min=0)
    ] = 0.7,
    max_new_tokens: Annotated[int, typer.Option(help="Longest reply.", min=1)] = 128,
    seed: Annotated[int, typer.Option(help="Of the replies: the same words get the same answers.")] = 0,
    threads: Threads = 1,
) -> None:
    """Talk to a policy, on a terminal or line by line from a pipe: **echo hello | grpo chat runs/train/policy**"""
    with plain_errors():
        torch.set_num_threads(threads)
        conversation = Conversation(
            *load_policy(model), persona or [], temperature=temperature, max_new_tokens=max_new_tokens, seed=seed
        )
        on_terminal = sys.stdin.isatty()
        if on_terminal:
            typer.echo(HELP)
        for line in _lines(on_terminal):
            if line == "/quit":
                break
            if line == "/reset":
                conversation.reset()
            elif line.startswith("/"):
                typer.echo(HELP, err=True)
            elif line:
                _answer(conversation, line, "bot> " if on_terminal else "")


class Conversation:
    """What was said so far, and a policy that answers it in the format it was trained in."""

    def __init__(
        self, policy: nn.Module, tokenizer, persona: list[str], *, temperature: float, max_new_tokens: int, seed: int
    ):
        self.policy, self.tokenizer, self.background = policy, tokenizer, tuple(persona)
        self.sampling = {"temperature": temperature, "max_new_tokens": max_new_tokens, "seed": seed}
        self.reset()
        positions = getattr(policy.config.get_text_config(), "max_position_embeddings", None)
        self.room = None if positions is None else positions - max_new_tokens  # for the prompt, in tokens
        if self.room is not None and self.room < 1:
            raise ValueError(f"a reply of {max_new_tokens} tokens leaves no room in the model's {positions} positions")

    def reset(self) -> None:
        """Begin anew: the same words then get the same answers."""
        self.turns: list[str] = []
        self.answered = 0

    def reply(self, text: str) -> str:
        """The answer to ``text``; both then belong to what was said."""
        turns = [*self.turns, text]
        prompt = self._prompt(turns)
        rollout = sample(self.policy, self.tokenizer, [prompt], group_size=1, step=self.answered, **self.sampling)
        (answer,) = rollout.texts
        self.turns, self.answered = [*turns, answer.strip()], self.answered + 1
        return self.turns[-1]

    def _prompt(self, turns: list[str]) -> list[int]:
        """Its tokens. The oldest exchanges are left out when there is no room for all."""
        first = 0
        while True:
            example = Example(turns=tuple(turns[first:]), references=("",), background=self.background)
            prompt = encode_prompt(example, self.tokenizer)
            if self.room is None or len(prompt) <= self.room or first + 2 >= len(turns):
                return prompt[-(self.room or 0) :]
            first += 2


def _answer(conversation: Conversation, text: str, label: str) -> None:
    try:
        # a stranger's model may give orders to the terminal
        typer.echo(label + (printable(conversation.reply(text), keep="\n") or "(no words)"))
    except KeyboardInterrupt:
        typer.echo(f"{label}(broken off, and forgotten)")


def _lines(on_terminal: bool) -> Iterator[str]:
    """What the user says, until there is no more or Ctrl-C at the prompt."""
    if not on_terminal:
        yield from map(str.strip, sys.stdin)
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  arrow keys in input()
    while True:
        try:
            yield input("you> ").strip()
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return
