import json
import os
import subprocess
import sys
import types

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_from_scratch.dialogue import conversations
from grpo_from_scratch.dialogue.corpus import embedded_dialogues
from grpo_from_scratch.dialogue.dataset import SPLITS, Example
from grpo_from_scratch.dialogue.readers import load_examples, read_jsonl, stream_examples
from grpo_from_scratch.dialogue.tasks import sort_digits

GOOD = b'{"context": "hi", "response": "hello"}'


def write(folder, *lines, name="data.jsonl"):
    path = folder / name
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def many(folder, count=200):
    records = [{"context": [f"turn {i}", "yes ?"], "response": f"reply {i}"} for i in range(count)]
    return write(folder, *(json.dumps(record).encode() for record in records))


def test_load_examples_embedded():
    assert load_examples("embedded", "train", count=20) == embedded_dialogues("train", count=20)
    for text, difficulty in (
        ("mixed", "mixed"),
        ("even", "even"),
        ("hidden", "hidden"),
        ("0.3", 0.3),
        (".5", 0.5),
        ("1", 1.0),
    ):
        expected = embedded_dialogues("tuning", difficulty=difficulty, seed=3, count=20)
        assert load_examples(f"embedded:{text}", "tuning", seed=3, count=20) == expected


def test_load_examples_sort_digits():
    assert load_examples("sort_digits", "report", seed=2, count=9) == sort_digits("report", seed=2, count=9)


@pytest.mark.parametrize(
    ("spec", "nearest"),
    [
        ("embeded", "embedded"),
        ("embedded:", "embedded"),
        ("embedded:hiden", "hidden"),
        ("embedded:1.5", "a number from 0 to 1"),
        ("embedded:-1", "a number from 0 to 1"),
        ("embedded:nan", "a number from 0 to 1"),
        ("sort-digits", "sort_digits"),
        ("sort_digits:3", "sort_digits"),
        ("chitcat", "chitchat"),
        ("jsonl", "jsonl:FILE"),
        ("jsonl:", "jsonl:FILE"),
        ("convai2", "convai2:FILE"),
        ("wizzard:x", "wizard:FILE"),
        ("elsewhere", "embedded.*sort_digits.*jsonl:FILE.*convai2:FILE.*wizard:FILE.*chitchat"),
        ("", "embedded"),
    ],
)
def test_load_examples_unknown_spec_names_the_nearest(spec, nearest):
    with pytest.raises(ValueError, match=nearest):
        load_examples(spec, "train", count=1)


def test_load_examples_unknown_split():
    for spec in ("embedded", "sort_digits", "chitchat", "jsonl:nowhere.jsonl"):
        with pytest.raises(ValueError, match="unknown split 'test'; there are train, tuning, report"):
            load_examples(spec, "test")


def test_read_jsonl_every_key(tmp_path):
    path = write(
        tmp_path,
        b'{"context": "hi", "response": "hello"}',
        b"",
        b'{"context": [" a ", "", "b"], "references": ["c", "d"], "persona": ["p", "q"], "facts": "f", "other": 1}\r',
        b'{"context": ["a"], "response": "r", "references": ["c"], "knowledge": "k", "persona": null, "facts": []}',
    )
    assert list(read_jsonl(path)) == [
        Example(("hi",), ("hello",), responses=("hello",)),
        Example(("a", "b"), ("c", "d"), background=("p", "q"), facts=("f",)),
        Example(("a",), ("c",), background=("k",), responses=("r",)),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"context": "hi", "response": "\xff"}', r"not UTF-8 \(byte 32 of the line\)"),
        (b"hello", "not JSON .*expected an object"),
        (b'{"context": "hi", "response": "hello"', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'["hi", "hello"]', "expected a JSON object .* got a list"),
        (b"{}", 'no "context"'),
        (b'{"turns": []}', 'no "context"'),
        (b'{"context": [], "response": "x"}', 'no "context"'),
        (b'{"context": ["", " "], "response": "x"}', 'no "context"'),
        (b'{"context": ["hi"]}', 'no reply; expected "response"'),
        (b'{"context": "hi", "response": " "}', "no reply"),
        (b'{"context": "hi", "references": []}', "no reply"),
        (b'{"context": 3, "response": "x"}', '"context" holds a int; expected a text'),
        (b'{"context": "hi", "references": ["x", null]}', '"references" holds a NoneType'),
        (b'{"context": "hi", "response": "x", "persona": {"a": 1}}', '"persona" holds a dict'),
        (b'{"context": "hi", "response": "\\ud83d"}', '"response" holds half of a surrogate pair'),
    ],
)
def test_read_jsonl_bad_line_is_named(tmp_path, line, expected):
    """DT-09: optional keys may be absent; a dialogue without a context or a reply is named."""
    path = write(tmp_path, GOOD, b"", line, GOOD)
    with pytest.raises(ValueError, match=expected) as caught:
        list(read_jsonl(path))
    assert f"{path}, line 3: " in str(caught.value)
    assert "\n" not in str(caught.value)
    bad = []
    assert len(list(read_jsonl(path, bad))) == 2
    assert bad == [str(caught.value)]


def test_read_jsonl_utf8_with_a_bom_whatever_the_locale(tmp_path):
    """DT-06: "你好 😊 é" and a UTF-8 BOM, in an ASCII locale."""
    path = write(tmp_path, b"\xef\xbb\xbf" + '{"context": "你好 😊 é", "response": "é"}'.encode(), GOOD)
    assert [example.turns for example in read_jsonl(path)] == [("你好 😊 é",), ("hi",)]
    code = (
        "import sys; from pathlib import Path; from grpo_from_scratch.dialogue.readers import read_jsonl;"
        "assert next(read_jsonl(Path(sys.argv[1]))).turns == ('\\u4f60\\u597d \\U0001f60a \\xe9',)"
    )
    env = os.environ | {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, env=env)


def test_load_examples_broken_byte_keeps_the_other_lines(tmp_path):
    """DT-06: one broken byte costs one line; the warning says how many were lost, once, and where the first is."""
    path = many(tmp_path)
    whole = load_examples(f"jsonl:{path}", "train")
    path.write_bytes(GOOD + b"\xff\n" + path.read_bytes() + b"{}\n")
    with pytest.warns(
        UserWarning, match=r"skipped 2 bad records, the first: .*data\.jsonl, line 1: not UTF-8"
    ) as caught:
        assert load_examples(f"jsonl:{path}", "train", skip_bad=True) == whole
    assert len(caught) == 1
    with pytest.raises(ValueError, match="line 1"):
        load_examples(f"jsonl:{path}", "train")


def test_read_jsonl_missing_or_empty_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="no data file .*nowhere"):
        load_examples(f"jsonl:{tmp_path / 'nowhere.jsonl'}", "train")
    with pytest.raises(FileNotFoundError, match="no data file"):
        load_examples(f"jsonl:{tmp_path}", "train")
    for content in (b"", b"\n\n", b"\xef\xbb\xbf"):
        path = write(tmp_path, content)
        with pytest.raises(ValueError, match="is empty; expected one JSON object"):
            load_examples(f"jsonl:{path}", "train")


def test_load_examples_of_bad_lines_only(tmp_path):
    """DT-09: nothing usable is an error, not an empty data set."""
    path = write(tmp_path, b"{}", b"nonsense")
    with pytest.warns(UserWarning, match="skipped 2 bad records"), pytest.raises(ValueError, match="no dialogue for"):
        load_examples(f"jsonl:{path}", "train", skip_bad=True)


def test_load_examples_jsonl_split_without_a_dialogue(tmp_path):
    path = write(tmp_path, GOOD)
    failed = 0
    for split in SPLITS:
        try:
            assert len(load_examples(f"jsonl:{path}", split)) == 1
        except ValueError as error:
            failed += 1
            assert f"no dialogue for the {split!r} split (1 in the others)" in str(error)
    assert failed == 2


def test_load_examples_jsonl_splits_share_no_context(tmp_path):
    path = many(tmp_path)
    path.write_bytes(path.read_bytes() * 2)  # each context twice: both go the same way
    splits = {split: load_examples(f"jsonl:{path}", split) for split in SPLITS}
    contexts = {split: {example.turns for example in examples} for split, examples in splits.items()}
    assert [len(splits[split]) for split in SPLITS] == [2 * len(contexts[split]) for split in SPLITS]
    assert sum(map(len, contexts.values())) == len(set().union(*contexts.values())) == 200


def test_load_examples_jsonl_split_looks_at_the_background(tmp_path):
    """The prompt holds the background, so that is a part of the context."""
    lines = [json.dumps({"context": "hi", "response": "r", "persona": f"p {i}"}).encode() for i in range(100)]
    path = write(tmp_path, *lines)
    assert all(0 < len(load_examples(f"jsonl:{path}", split)) < 100 for split in SPLITS)


def test_load_examples_jsonl_count_takes_the_first(tmp_path):
    path = many(tmp_path)
    whole = load_examples(f"jsonl:{path}", "train")
    path.write_bytes(path.read_bytes() + b"nothing behind them is read")
    assert load_examples(f"jsonl:{path}", "train", count=7) == whole[:7]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1), st.text(), st.booleans())
def test_read_jsonl_reads_back_what_json_wrote(tmp_path_factory, turns, reply, ascii_only):
    turns = [turn for turn in (turn.strip() for turn in turns) if turn] or ["hi"]
    reply = reply.strip() or "hello"
    record = json.dumps({"context": turns, "response": reply}, ensure_ascii=ascii_only)
    path = write(tmp_path_factory.mktemp("data"), record.encode())
    assert list(read_jsonl(path)) == [Example(tuple(turns), (reply,), responses=(reply,))]


@pytest.fixture
def chitchat(monkeypatch):
    """Stands in for the package: what it holds is what the test puts in."""
    held = []
    module = types.ModuleType("chitchat_dataset")
    module.ConversationDataset = lambda: ((message for message in conversation) for conversation in held)
    monkeypatch.setitem(sys.modules, "chitchat_dataset", module)
    return held


def test_chitchat_replies_to_the_last_messages(chitchat, monkeypatch):
    monkeypatch.setattr(conversations, "split_of", lambda context: "train")
    chitchat += [["a", " b ", " ", "c", "d", "e"], ["only one"]]
    assert [(example.turns, example.references) for example in load_examples("chitchat", "train")] == [
        (("a",), ("b",)),
        (("a", "b"), ("c",)),
        (("a", "b", "c"), ("d",)),
        (("b", "c", "d"), ("e",)),
    ]


def test_chitchat_shared_opening_goes_to_one_split(chitchat, monkeypatch):
    monkeypatch.setattr(conversations, "split_of", lambda text: "report" if "report" in text else "train")
    chitchat += [["hi", "hello"], ["hi", "report", "x"], ["hi", "again"]]
    assert [example.turns for example in load_examples("chitchat", "train")] == [("hi",), ("hi",)]
    assert [example.turns for example in load_examples("chitchat", "report")] == [("hi", "report")]
    assert [example.references for example in load_examples("chitchat", "train", count=1)] == [("hello",)]


def test_stream_examples_is_load_examples_of_every_split(tmp_path):
    path = many(tmp_path)
    for spec in (f"jsonl:{path}", "sort_digits"):
        streamed = list(stream_examples(spec, seed=3))
        for split in SPLITS:
            assert [example for owner, example in streamed if owner == split] == load_examples(spec, split, seed=3)


def test_load_examples_chitchat_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "chitchat_dataset", None)
    with pytest.raises(ImportError, match=r"pip install 'grpo-from-scratch\[chitchat\]'"):
        load_examples("chitchat", "train")


@pytest.mark.real
def test_load_examples_chitchat_real_conversations():
    splits = {split: load_examples("chitchat", split) for split in SPLITS}
    contexts = {split: {example.turns for example in examples} for split, examples in splits.items()}
    assert sum(map(len, contexts.values())) == len(set().union(*contexts.values()))
    assert len(splits["train"]) > 100_000
    assert min(len(splits["tuning"]), len(splits["report"])) > 10_000
    assert splits["train"][0].turns == ("Hello How are you doing today?",)
    assert splits["train"][0].references == ("whats up MD im doing good how are you doing?",)


def test_a_file_without_its_form_is_told_the_forms(tmp_path):
    file = tmp_path / "mine.jsonl"
    file.write_text('{"context": "hi", "response": "hello"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=f"say in which form: jsonl:{file}, convai2:{file}, wizard:{file}$"):
        load_examples(str(file), "train")
    with pytest.raises(ValueError, match="valid are embedded, "):
        load_examples("zzzzzzzz", "train")
