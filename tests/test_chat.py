"""``grpo chat``: the prompt is the one of training, and neither Ctrl-C nor the end of a pipe breaks it."""

import builtins

import pytest
import torch
from typer.testing import CliRunner

from grpo_from_scratch import cli
from grpo_from_scratch.cli import chat
from grpo_from_scratch.dialogue.dataset import Example, encode_prompt
from grpo_from_scratch.policy.loading import load_policy, new_tiny_policy, save_policy

WORDS = "red green blue one two three"
ARGUMENTS = ["--max-new-tokens", "6"]


@pytest.fixture(scope="module")
def policy(tmp_path_factory) -> str:
    model, tokenizer = new_tiny_policy([WORDS], hidden_size=16, layers=1, heads=2)
    model.config.tie_word_embeddings = False  # a tied head would say the last token again
    generator = torch.Generator().manual_seed(0)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(len(tokenizer), 16, generator=generator))
    model.lm_head.weight.data[:6] = 0  # words rather than marks
    folder = tmp_path_factory.mktemp("policy")
    save_policy(model, tokenizer, folder)
    return str(folder)


def say(policy: str, *lines: str, options: tuple[str, ...] = (), code: int = 0):
    text = "".join(f"{line}\n" for line in lines)
    found = CliRunner().invoke(cli.app, ["chat", policy, *ARGUMENTS, *options], input=text, env={"GRPO_TRACEBACK": ""})
    assert found.exit_code == code, found.output
    assert "Traceback" not in found.output
    return found


def test_chat_answers_each_line_as_plain_transformers_does(policy):
    """Greedy replies to a conversation of three turns with a persona, each from everything said before."""
    said = say(
        policy, "red", "", "  two blue ", options=("--temperature", "0", "--persona", "one", "--persona", "three")
    )
    model, tokenizer = load_policy(policy)
    turns: list[str] = []
    for text in ("red", "two blue"):
        turns.append(text)
        ids = torch.tensor([encode_prompt(Example(tuple(turns), ("x",), background=("one", "three")), tokenizer)])
        out = model.generate(ids, max_new_tokens=6, do_sample=False)[0, ids.shape[1] :]
        turns.append(tokenizer.decode(out, skip_special_tokens=True))
    assert said.stdout.splitlines() == [turns[1] or "(no words)", turns[3] or "(no words)"]
    assert len(set(turns)) == 4, "the replies differ, so the second depends on more than its own line"


def test_chat_seed_and_reset(policy):
    """Its replies are the seed's; /reset begins anew, and what follows /quit is not read."""
    one = say(policy, "red", "blue", "/reset", "red", "blue", "/quit", "green").stdout.splitlines()
    assert len(one) == 4 and one[:2] == one[2:] and one[0] != one[1]
    assert say(policy, "red", "blue").stdout.splitlines() == one[:2]
    others = [say(policy, "red", "blue", options=("--seed", str(seed))).stdout.splitlines() for seed in (1, 2)]
    assert one[:2] not in others


def test_chat_unknown_command_and_nothing_to_read(policy):
    said = say(policy, "/rest", "red")
    assert chat.HELP in said.stderr and len(said.stdout.splitlines()) == 1
    assert say(policy).stdout == ""


def test_chat_gives_the_terminal_no_orders(policy, monkeypatch):
    monkeypatch.setattr(chat.Conversation, "reply", lambda self, text: "one\n\x1b[2Jtwo")
    said = CliRunner().invoke(cli.app, ["chat", policy], input="hi\n", color=True).output
    assert said == "one\n\\x1b[2Jtwo\n"


def test_chat_ctrl_c_breaks_off_a_reply_and_forgets_it(policy, monkeypatch):
    calls = []

    def interrupted(*arguments, **options):
        calls.append(arguments[2])
        if len(calls) == 2:
            raise KeyboardInterrupt
        return sample(*arguments, **options)

    sample = chat.sample
    monkeypatch.setattr(chat, "sample", interrupted)
    said = say(policy, "red", "green", "blue").stdout.splitlines()
    assert said[1] == "(broken off, and forgotten)" and len(said) == 3
    assert said == [*say(policy, "red").stdout.splitlines(), said[1], said[2]]
    tokenizer = load_policy(policy)[1]
    assert tokenizer.decode(calls[2][0]) == f"<bos> <user> red <bot> {said[0]} <user> blue <bot>"


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_chat_on_a_terminal_ends_with_ctrl_d_or_ctrl_c(monkeypatch, capsys, end):
    lines = iter([" red "])

    def typed(prompt):
        assert prompt == "you> "
        for line in lines:
            return line
        raise end

    monkeypatch.setattr(builtins, "input", typed)
    assert list(chat._lines(on_terminal=True)) == ["red"]
    assert capsys.readouterr().out == "\n"


def test_chat_gives_no_orders_to_the_terminal(policy, monkeypatch):
    monkeypatch.setattr(chat.Conversation, "reply", lambda self, text: f"{text}\n\x1b]0;owned\x07 \u202eevil")
    assert say(policy, "red").stdout == "red\n\\x1b]0;owned\\x07 \\u202eevil\n"


def test_chat_leaves_out_what_has_no_room(policy):
    """The oldest exchanges go, a pair at a time; the persona and the last words stay."""
    model, tokenizer = load_policy(policy)
    talk = chat.Conversation(model, tokenizer, ["one"], temperature=1.0, max_new_tokens=240, seed=0)  # 16 left
    turns = ["red red", "green green", "blue blue", "two two", "three three"]
    kept = tokenizer.decode(talk._prompt(turns))
    assert kept == "<bos> one <user> blue blue <bot> two two <user> three three <bot>"
    long = " ".join(["red"] * 30 + ["blue"])
    assert len(talk._prompt([*turns[:-1], long])) == 16
    assert tokenizer.decode(talk._prompt([long])).endswith("red blue <bot>")
    assert talk.reply(long) is not None


def test_chat_refuses(policy, tmp_path):
    assert (
        "leaves no room in the model's 256 positions" in say(policy, options=("--max-new-tokens", "256"), code=1).stderr
    )
    assert "holds no Hugging Face model" in say(str(tmp_path), code=1).stderr
