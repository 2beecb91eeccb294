"""``grpo rate`` from the first question to the report, and everything a hand at the keyboard may do to it."""

import json
import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from grpo_from_scratch import cli
from grpo_from_scratch.cli import rate
from grpo_from_scratch.evaluation.intervals import Interval
from grpo_from_scratch.evaluation.rating_report import COLUMNS
from grpo_from_scratch.evaluation.ratings import ASPECTS, RatingSession
from grpo_from_scratch.policy.loading import new_tiny_policy, save_policy

WORDS = "red green blue one two three"


def grpo_rate(*arguments, typed="", code=0) -> str:
    found = CliRunner().invoke(
        cli.app, ["rate", *map(str, arguments)], input=typed, env={"COLUMNS": "200", "GRPO_TRACEBACK": ""}
    )
    assert found.exit_code == code, found.output
    assert "Traceback" not in found.output
    return found.output


@pytest.fixture
def replies(tmp_path):
    lines = [
        {"policy": policy, "context": [f"turn {i}", "¿ sí ?", "so ?"], "reply": f"{word} 好 {i}", "persona": "i fish ."}
        | {"references": [f"yes 好 {i}"], "facts": "yes"}
        for i in range(3)
        for policy, word in (("alpha", "yes"), ("beta", "no"))
    ]
    path = tmp_path / "replies.jsonl"
    path.write_text("\n\n".join(json.dumps(line, ensure_ascii=False) for line in lines), encoding="utf-8-sig")
    return path


def test_rate_shows_the_conversation_and_saves(replies, tmp_path):
    said = grpo_rate(tmp_path / "s", "--replies", replies, "--rater", "ann", typed="4 5 3\n")
    assert "Reply 1 of 6" in said and "Reply 2 of 6" in said and "1 of 6 replies rated by ann" in said
    assert re.search(
        r"B knows: +i fish \.\n +A: +turn \d\n +B: +¿ sí \?\n +A: +so \?\n +B, reply: +(yes|no) 好 \d\n", said
    )
    assert "alpha" not in said and "beta" not in said
    session = RatingSession(tmp_path / "s")
    assert session.ratings() == {("ann", session.order("ann")[0].id): dict(zip(ASPECTS, (4, 5, 3), strict=True))}


def test_rate_goes_on_and_goes_back(replies, tmp_path):
    folder = tmp_path / "s"
    order = "--replies", replies, "--rater", "ann"
    grpo_rate(folder, *order, typed="1 1 1\n222\nq\n")
    assert "Reply 3 of 6" in grpo_rate(folder, *order, typed="")
    said = grpo_rate(folder, "--rater", "ann", typed="b\n5 5 5\n3,3,3\n4 4 4\n4 4 4\n4 4 4\n\n")
    assert re.search(r"Reply 2 of 6(.|\n)*so far: +2 2 2\n", said)
    assert "Every reply is rated" in said and "6 of 6 replies rated" in said
    session = RatingSession(folder)
    given = [session.ratings()["ann", item.id]["fluency"] for item in session.order("ann")]
    assert given == [1, 5, 3, 4, 4, 4]
    assert "so far: " in grpo_rate(folder, "--rater", "ann", typed="b\nq\n")  # the last one, for a second thought
    assert session.order("bo") != session.order("ann")


@pytest.mark.parametrize("typed", ["7 1 1", "xx", "4 5", "", "B b"])
def test_rate_nonsense_gets_one_sentence_and_is_asked_again(replies, tmp_path, typed):
    said = grpo_rate(tmp_path / "s", "--replies", replies, typed=f"{typed}\n1 2 3\nq\n")
    assert said.count("Not saved: type 3 digits from 0 to 5") == 1
    assert said.count("Reply 1 of 6") == 1 and "1 of 6 replies rated" in said


def test_rate_back_at_the_first_reply_stays(replies, tmp_path):
    assert grpo_rate(tmp_path / "s", "--replies", replies, typed="b\nb\nq\n").count("Reply 1 of 6") == 3


def test_rate_ctrl_c_keeps_what_is_rated(replies, tmp_path):
    """In a process of its own, with the real signal, at the second question."""
    command = [
        sys.executable,
        "-m",
        "grpo_from_scratch",
        "rate",
        tmp_path / "s",
        "--replies",
        replies,
        "--rater",
        "ann",
    ]
    with subprocess.Popen(
        command,
        text=True,
        encoding="utf-8",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=1,
    ) as process:
        process.stdin.write("4 5 3\n")
        while "Reply 2 of 6" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.strip() == "Stopped: every rating so far is kept, and the same command goes on from there."
    assert len(RatingSession(tmp_path / "s").ratings()) == 1


def test_rate_gives_the_terminal_no_orders(tmp_path):
    """A reply of a stranger's file may hold an escape sequence; its lines stay lines."""
    record = {"policy": "a", "context": "c \x1b[2J", "reply": "one\n\x1b[31mtwo"}
    (tmp_path / "r.jsonl").write_text(json.dumps(record) + "\n")
    arguments = ["rate", str(tmp_path / "s"), "--replies", str(tmp_path / "r.jsonl"), "--rater", "ann"]
    said = CliRunner().invoke(cli.app, arguments, input="q\n", color=True).output
    assert "\x1b[2J" not in said and "\x1b[31m" not in said
    assert "c \\x1b[2J" in said and "one\n            \\x1b[31mtwo" in said


def test_rate_without_a_login_asks_for_a_name(replies, tmp_path, monkeypatch):
    def unknown():
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", unknown)
    assert "give one with --rater NAME" in grpo_rate(tmp_path / "s", "--replies", replies, code=1)
    assert "0 of 6 replies rated by ann" in grpo_rate(tmp_path / "s", "--rater", "ann")


def test_rate_report(replies, tmp_path):
    folder = tmp_path / "s"
    assert "No ratings yet" in grpo_rate(folder, "--replies", replies, "--report")
    session = RatingSession(folder)
    for rater in ("ann", "bo"):
        for item in session.items:
            session.rate(rater, item, dict.fromkeys(ASPECTS, 4 if item.reply.startswith("yes") else 1))
        said = grpo_rate(folder, "--report")
        assert ("Agreement needs 2 raters" in said) == (rater == "ann")
    assert "Raters: ann (6 of 6), bo (6 of 6)" in said
    assert re.search(r"alpha +4\.00 \[.*\n" r"beta +1\.00 \[", said)
    # 0.025^(1/3) is the least that three contexts of three can show
    assert "alpha wins 1.00 [0.29, 1.00] of its 6 pairs with beta on 3 contexts" in said
    assert "Note: 3 rated contexts: fewer than 10" in said
    assert "alpha, ordinal): fluency 1.00" in said and "quadratic kappa): fluency 1.00" in said
    assert re.search(r"facts +1\.00", said) and re.search(r"words +— ", said)


def test_report_keeps_its_columns_apart():
    """The widest cell is a negative number with an interval."""
    cells = dict.fromkeys(COLUMNS, Interval(-0.95, -1.0, -0.9))
    *_, row = rate._table("Spearman's rho with", {"BLEU": cells})
    assert row.split("  ")[-1] == "" and row.count("−0.95 [−1.00, −0.90]  ") == 4


def test_rate_report_of_constant_ratings_is_not_agreement(replies, tmp_path):
    grpo_rate(tmp_path / "s", "--replies", replies, typed="q\n")
    session = RatingSession(tmp_path / "s")
    for rater in ("ann", "bo"):
        for item in session.items:
            session.rate(rater, item, dict.fromkeys(ASPECTS, 3))
    assert "fluency —, relevance —, informativeness — (all ratings are 3" in grpo_rate(tmp_path / "s", "--report")


def test_rate_makes_a_session_of_policies(tmp_path):
    names = []
    for seed in (0, 1):
        model, tokenizer = new_tiny_policy([WORDS], hidden_size=16, layers=1, heads=2, seed=seed)
        names.append(str(tmp_path / f"policy{seed}"))
        save_policy(model, tokenizer, names[-1])
    short = "--max-new-tokens", "2"
    made = "--policy", names[0], "--policy", names[1], "--data", "embedded", *short, "--count", "3"
    assert re.search(r"Reply 2 of \d", grpo_rate(tmp_path / "s", *made, typed="1 2 3\n"))
    session = RatingSession(tmp_path / "s")
    assert {name for entry in session.key["items"].values() for name in entry["policies"]} == set(names)
    assert len({item.context for item in session.items}) == 3
    assert max(len(item.reply.split()) for item in session.items) <= 2
    assert all(entry["references"] for entry in session.key["items"].values())
    grpo_rate(tmp_path / "s", *made, typed="1 2 3\n")  # goes on, samples nothing anew
    assert len(session.ratings()) == 2
    assert "made of something else" in grpo_rate(tmp_path / "s", *made[:-1], "4", code=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["new"], "no rating session in new; make one: --policy A --policy B, or --replies FILE"),
        (["new", "--policy", "tiny", "--policy", "tiny"], "a policy stands twice"),
        (["new", "--policy", "tiny", "--replies", "x.jsonl"], "of --policy or of --replies, not of both"),
        (["new", "--replies", "x.jsonl"], "no file of replies x.jsonl"),
        (["new", "--policy", "/nowhere/at/all"], "there is no folder '/nowhere/at/all'"),
        (
            ["new", "--replies", "bad.jsonl"],
            'bad.jsonl, line 2: expected a "context", and texts for "policy" and "reply"',
        ),
        (["new", "--replies", "worse.jsonl"], 'worse.jsonl, line 1: "context" should be a text or a list of texts'),
        (["new", "--replies", "empty.jsonl"], "needs at least one reply"),
        (["new", "--replies", "bad.jsonl", "--rater", " "], "bad.jsonl, line 2"),
        (["full", "--replies", "good.jsonl"], "full is in use"),
    ],
)
def test_rate_bad_input_gets_one_sentence(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    good = '{"policy": "a", "context": "hi", "reply": "x"}\n'
    (tmp_path / "good.jsonl").write_text(good)
    (tmp_path / "bad.jsonl").write_text(good + '{"context": "hi", "reply": "x"}\n')
    (tmp_path / "worse.jsonl").write_text('{"policy": "a", "context": 5, "reply": "x"}\n')
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").touch()
    said = " ".join(grpo_rate(*arguments, code=1).split())
    assert "grpo: " in said and message in said
    assert not (tmp_path / "new").exists()
