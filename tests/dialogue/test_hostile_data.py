"""Whatever a data file holds, it is read rightly or refused in a sentence."""

import copy
import io
import json
import re
import signal
import warnings
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import published
from grpo_from_scratch.dialogue import records
from grpo_from_scratch.dialogue.dataset import Example
from grpo_from_scratch.dialogue.readers import stream_examples

INPUTS = [200, pytest.param(5000, marks=pytest.mark.slow)]
SPECS = ("jsonl", "convai2", "wizard")


@contextmanager
def no_longer_than(seconds: int):
    def stop(*_):
        raise TimeoutError(f"read for more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read(path, spec, *, skip_bad=False):
    """The examples, or the refusal; then what was warned of."""
    with warnings.catch_warnings(record=True) as said, no_longer_than(20):
        warnings.simplefilter("always")
        try:
            found = [example for _, example in stream_examples(f"{spec}:{path}", skip_bad=skip_bad)]
        except ValueError as error:
            found = str(error)
    return found, [str(warning.message) for warning in said]


def check_reading(path, spec):
    strict, silent = read(path, spec)
    lenient, warned = read(path, spec, skip_bad=True)
    assert silent == []
    if isinstance(strict, str):
        assert str(path) in strict and "\n" not in strict and len(strict) < 1000, strict
        assert lenient == strict or re.fullmatch(r"skipped \d+ bad records, the first: (?s:.*)", warned[0])
        assert lenient == strict or warned[0].endswith(strict), "the first that is skipped is the one that was refused"
    else:
        assert lenient == strict and warned == []
        for example in strict:
            assert isinstance(example, Example) and example.turns and example.references
            for text in (*example.turns, *example.references, *example.background):
                assert text == text.strip() != ""
                text.encode()


def starting_files() -> list[tuple[str, bytes]]:
    files = [(spec, text.encode()) for spec, text in published.FILES.values()]
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        return files
    made = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(published.wizard_hub()), made)
    return [*files, ("wizard", made.getvalue())]


FILES = starting_files()
NASTY = [
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\r",
    b"\n",
    b"\t",
    b"\xe2\x80\xa8",
    b"\\ud83d",
    b'"',
]
NASTY += [
    b"9" * 5000,
    b"[" * 20000,
    b'{"a":' * 20000,
    b"1e999",
    b"NaN",
    b"\x1f\x8b",
    b"|" * 100,
    b"__SILENCE__",
    b"]",
    b"}",
]
NASTY += [b"1 your persona: x\n", b"999999 ", b"-1 ", "９ ".encode(), b"//", b"\x1a", b" " * 5000, b"\n" * 5000]
WRONG = [
    None,
    True,
    3,
    -1,
    1.5,
    10**30,
    float("nan"),
    "",
    " ",
    "x",
    "\ud83d",
    "\0",
    "a\u2028b",
    [],
    {},
    [[]],
    ["x"],
    {"a": "x"},
]


@st.composite
def bytes_mutated(draw) -> tuple[str, bytes]:
    spec, data = draw(st.sampled_from(FILES))
    for _ in range(draw(st.integers(1, 4))):
        at, length = draw(st.integers(0, len(data))), draw(st.integers(0, 40))
        kind = draw(st.sampled_from(["cut", "flip", "insert", "remove", "repeat"]))
        if kind == "cut":
            data = data[:at]
        elif kind == "flip":
            data = (
                data[:at] + bytes(byte ^ (1 << draw(st.integers(0, 7))) for byte in data[at : at + 1]) + data[at + 1 :]
            )
        elif kind == "insert":
            data = data[:at] + draw(st.sampled_from(NASTY)) + data[at:]
        elif kind == "remove":
            data = data[:at] + data[at + length :]
        else:
            data = data[: at + length] + data[at:]
    return spec, data


def places(node, path=()):
    yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def changed(node, path, value, remove: bool):
    """The tree with the node at ``path`` replaced or removed."""
    if not path:
        return value
    node = copy.copy(node)
    if remove and len(path) == 1:
        del node[path[0]]
    else:
        node[path[0]] = changed(node[path[0]], path[1:], value, remove)
    return node


@st.composite
def records_mutated(draw) -> tuple[str, bytes]:
    """JSON that is well formed and wrong: keys gone, types swapped."""
    makers = (
        published.personachat,
        published.personachat_rows,
        published.conv_ai_2,
        published.wizard,
        published.wizard_hub,
    )
    make = draw(st.sampled_from(makers))
    tree = make()
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(tree))))
        tree = changed(tree, path, draw(st.sampled_from(WRONG)), draw(st.booleans()))
    spec = "wizard" if make in (published.wizard, published.wizard_hub) else "convai2"
    as_lines = isinstance(tree, list) and draw(st.booleans())
    return spec, "".join(json.dumps(record) + "\n" for record in (tree if as_lines else [tree])).encode()


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("mutated", [bytes_mutated, records_mutated])
def test_readers_refuse_in_a_sentence_or_read_rightly(tmp_path, mutated, inputs):
    path = tmp_path / "data"

    @settings(max_examples=inputs, deadline=None)
    @given(mutated())
    def check(case):
        spec, data = case
        path.write_bytes(data)
        check_reading(path, spec)

    check()


@pytest.mark.parametrize("spec", SPECS)
@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_readers_of_anything(tmp_path_factory, spec, data):
    path = tmp_path_factory.mktemp("any") / "data"
    path.write_bytes(data)
    check_reading(path, spec)


@pytest.mark.parametrize("form", ["[{0}, {0}]", '{{"train": [{0}], "valid": [{0}]}}', "{{\n{1}\n{0}"])
def test_json_is_read_alike_in_pieces_of_any_size(tmp_path, monkeypatch, form):
    """A record that the end of a piece cuts, in a word, a text, an escape, a number or a character, is the same one."""
    record = '{"a": true, "b": [null, -1.5e3], "é": "你 \\ud83d\\ude00 \\" \\n 😊"}'
    text = form.format(record, record[1:]).encode()
    (tmp_path / "data").write_bytes(text)
    for chunk in range(1, len(text) + 1):
        monkeypatch.setattr(records, "CHUNK", chunk)
        assert [value for _, value in records.records(tmp_path / "data")] == [json.loads(record)] * 2, chunk


GOOD = published.convai2(conversations=[published.EXCHANGES])


@pytest.mark.parametrize(
    ("spec", "text", "message"),
    [
        ("convai2", GOOD + "1 hi\n", "line 5: expected an utterance and a reply, .*; got 1 columns"),
        ("convai2", GOOD + "1 hi\t\t\ta|b\n", 'line 5: "reply" is blank'),
        ("convai2", GOOD + "1 a\tb\tc\td\te\n", "line 5: .*got 5 columns"),
        ("convai2", GOOD + "1 a\tb\n3 c\td\n", "line 6: expected a line that begins with 2"),
        ("convai2", GOOD + "2 a\tb\n", "line 5: expected a line that begins with 1, got"),
        ("convai2", GOOD + "a\tb\n", "line 5: expected a line that begins with 5 "),
        ("convai2", GOOD + "1 a\tb\n2 your persona: i ski .\n", "line 6: a persona after the first exchange"),
        ("convai2", GOOD + "1 your persona: i ski .\n", "line 5: the conversation has a persona and no exchange"),
        ("convai2", GOOD + "1 your persona:\n", 'line 5: "your persona" is blank'),
        ("convai2", GOOD.encode() + b"1 a\t\xff\n", r"line 5: not UTF-8 \(byte 5 of the line\)"),
        ("convai2", [published.personachat()[0], 3], "record 2 .*got a int"),
        ("convai2", [{"personality": ["x"]}], '"history" must be a list of at least one text'),
        ("convai2", [{"personality": [], "utterances": []}], '"utterances" is empty'),
        ("convai2", [{"personality": [3], "utterances": []}], '"personality" holds a int'),
        (
            "convai2",
            [{"personality": [], "utterances": [{"history": ["a"], "candidates": []}]}],
            '"candidates" must be',
        ),
        ("convai2", [{"dialog": [{"sender_class": "Cat", "text": "x"}], "user_profile": []}], "expected Human or Bot"),
        ("wizard", [published.wizard()[0], []], "record 2 .*got a list"),
        ("wizard", [published.wizard()[0], {"chosen_topic": "Tea"}], "got one with chosen_topic"),
        ("wizard", [{"chosen_topic": "", "dialog": []}], '"chosen_topic" is blank'),
        ("wizard", [{"chosen_topic": "Tea", "dialog": []}], "the wizard says nothing"),
        (
            "wizard",
            [{"chosen_topic": "Tea", "dialog": [{"speaker": "Bob", "text": "x"}]}],
            "turn 1: .*expected 0_Wizard",
        ),
        ("wizard", [{"chosen_topic": "Tea", "dialog": [{"speaker": "0_Wizard"}]}], 'turn 1: "text" holds a NoneType'),
        (
            "wizard",
            [{"post": ["a"], "response": [], "labels": [], "knowledge": []}],
            "an entry each for every exchange",
        ),
        ("wizard", [{"post": ["a"], "response": ["b"], "labels": [1], "knowledge": [["x"]]}], "a place in a list of 1"),
        ("wizard", '[{"chosen_topic": "Tea",\n oh}]', r"record 1 \(line 2\): not JSON .*what follows cannot be read"),
        ("wizard", json.dumps(published.wizard())[:-1], "record 3 .*got 'the end of the file'"),
        ("wizard", json.dumps(published.wizard()) + "x", "record 3 .*expected the end of the file, got 'x'"),
        ("wizard", "[" * 100_000, "record 1 .*nested too deeply"),
        ("wizard", '[{"chosen_topic": ' + "9" * 5000 + "}]", "record 1 .*4300 digits"),
        ("wizard", json.dumps(published.wizard()).encode().replace(b"Nice", b"\xffice"), "record 1 .*not UTF-8"),
    ],
)
def test_bad_record_is_named(tmp_path, spec, text, message):
    path = tmp_path / "data"
    text = json.dumps(text) if isinstance(text, list) else text
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    found, _ = read(path, spec)
    assert isinstance(found, str) and re.search(message, found), found
    assert str(path) in found


@pytest.mark.parametrize("newline", ["\r\n", "\n\n"])
def test_bad_conversation_costs_itself_alone(tmp_path, newline):
    path = tmp_path / "data"
    text = published.convai2().replace("\n", newline)
    path.write_text("\ufeff" + text, encoding="utf-8", newline="")
    whole, _ = read(path, "convai2")
    assert len(whole) == 4
    path.write_bytes((GOOD + "2 lost\tlines\n").encode() + b"1 \xff\tx\n" + text.encode())
    found, warned = read(path, "convai2", skip_bad=True)
    assert found == read(path, "convai2", skip_bad=True)[0] and found[-4:] == whole[-4:]
    assert re.match(r"skipped 2 bad records, the first: .*data, line 5: expected a line that begins with 1", warned[0])


def test_line_separators_of_unicode_are_text(tmp_path):
    """U+2028 ends a line for str.splitlines, not for the published files."""
    path = tmp_path / "data"
    path.write_text("1 a\u2028b\tc\x85d\x0be\n", encoding="utf-8")
    assert read(path, "convai2")[0] == [Example(("a\u2028b",), ("c\x85d\x0be",))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty; expected"),
        (b"\n \n", "is empty; expected"),
        (b"\x1f\x8b\x08" + bytes(50), "a gzip archive; unpack it"),
        (b"PK\x03\x04" + bytes(50), "a zip archive"),
        ("hello".encode("utf-16"), "text in UTF-16; save it as UTF-8"),
        (bytes(range(256)) * 10, "binary data"),
    ],
)
@pytest.mark.parametrize("spec", SPECS)
def test_wrong_file_is_told_what_it_seems_to_be(tmp_path, spec, content, message):
    path = tmp_path / "data"
    path.write_bytes(content)
    for skip_bad in (False, True):
        assert re.search(message, read(path, spec, skip_bad=skip_bad)[0])


@pytest.mark.parametrize("name", published.FILES)
@pytest.mark.parametrize("spec", SPECS)
def test_file_of_another_layout_is_told_its_own_spec(tmp_path, name, spec):
    own, text = published.FILES[name]
    path = tmp_path / "data"
    path.write_text(text, encoding="utf-8")
    found, _ = read(path, spec)
    if spec == own:
        assert len(found) >= 2
    else:
        assert f"read it as {own}:{path}" in found


def test_clariq_is_told_apart(tmp_path):
    path = tmp_path / "data"
    path.write_text(json.dumps([{"topic_id": 1, "initial_request": "x", "clarification_need": 2, "question": "y"}]))
    assert "ClariQ (conv_ai_3)" in read(path, "convai2")[0]


def test_line_without_an_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST", 1 << 20)
    path = tmp_path / "data"
    path.write_bytes(b"1 a\tb\n2 " + b"x" * (3 << 20) + b"\n1 c\td\n")
    assert "line 2: longer than 1 MiB" in read(path, "convai2")[0]
    assert [example.turns for example in read(path, "convai2", skip_bad=True)[0]] == [("c",)]
