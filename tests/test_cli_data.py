"""``grpo data``: any spec summarised, or refused in one sentence."""

import json

import pytest
from typer.testing import CliRunner

from grpo_from_scratch import cli

CONVERSATION = "1 your persona: i fish .\n2 hi\thello \x1b[31m[red]\n3 and you ?\tsure , i [fish] .\n"


def grpo(*arguments: str, code: int = 0) -> str:
    found = CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "200", "GRPO_TRACEBACK": ""})
    assert found.exit_code == code, found.output
    return " ".join(found.output.split())


@pytest.fixture
def convai2(tmp_path):
    (tmp_path / "valid.txt").write_text(CONVERSATION, encoding="utf-8")
    return f"convai2:{tmp_path / 'valid.txt'}"


def test_data_summarises_and_draws(tmp_path, convai2):
    said = grpo("data", convai2, "--out", str(tmp_path / "out"))
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    assert sum(summary["examples"].values()) == 2 and summary["all"]
    assert (tmp_path / "out" / "lengths.png").read_bytes().startswith(b"\x89PNG")
    assert "known i fish . user hi reply hello" in said
    assert f"picture: {tmp_path / 'out' / 'lengths.png'}" in said


def test_data_gives_a_terminal_no_orders(tmp_path, convai2):
    """Neither a colour of the terminal's nor one of rich's."""
    said = grpo("data", convai2, "--out", str(tmp_path / "out"))
    assert "\x1b" not in said and r"\x1b[31m[red]" in said and "i [fish] ." in said


def test_data_says_when_there_is_more(tmp_path):
    said = grpo("data", "sort_digits", "--count", "9", "--out", str(tmp_path / "out"), "--model", "tiny")
    assert "there are more; these are the first 9" in said and "tokens of a prompt" in said
    assert not json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))["all"]


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "is empty; expected Persona-Chat"),
        (b"\x1f\x8b\x08\0", "gzip archive"),
        (b'[{"chosen_topic": "Tea"}]', "read it as wizard:"),
        (b"1 hi\thello\n3 lost\tline\n", "line 2: expected a line that begins with 2"),
        (b"1 __SILENCE__\thello\n", "holds no dialogue with a reply to learn from"),
    ],
)
def test_data_refuses_in_one_sentence_and_writes_nothing(tmp_path, content, message):
    (tmp_path / "data").write_bytes(content)
    said = grpo("data", f"convai2:{tmp_path / 'data'}", "--out", str(tmp_path / "out"), code=1)
    assert said.startswith("grpo: ") and message in said
    assert not (tmp_path / "out").exists()


def test_data_skips_bad_records(tmp_path):
    (tmp_path / "data").write_bytes(b"1 lost\n" + CONVERSATION.encode())
    said = grpo("data", f"convai2:{tmp_path / 'data'}", "--skip-bad", "--out", str(tmp_path / "out"))
    assert "note: skipped 1 bad records, the first" in said
