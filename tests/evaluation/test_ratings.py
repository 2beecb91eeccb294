"""Rating sessions: what raters see, what is kept through kills and changes, and who may write at once."""

import json
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from grpo_from_scratch.dialogue.dataset import Example
from grpo_from_scratch.evaluation.ratings import (
    ASPECTS,
    RatingSession,
    Reply,
    Sitting,
    check_scores,
    parse_scores,
    ratings_matrix,
    replies_to,
)

A, B = "runs/alpha/policy", "runs/beta/policy"


def replies(count=4):
    return [
        Reply(name, (f"turn {i}", "¿ sí ?"), f"réply {i} 好 {name[5]}", ("i fish .",))
        for i in range(count)
        for name in (A, B)
    ]


def scores(*values):
    return dict(zip(ASPECTS, values, strict=True))


@pytest.fixture
def session(tmp_path):
    return RatingSession.create(tmp_path / "session", replies())


def test_create_and_open_again(session):
    again = RatingSession(session.folder)
    assert again.items == session.items and len(again.items) == 8
    assert {(item.context, item.reply, item.background) for item in again.items} == {
        (reply.context, reply.text, reply.background) for reply in replies()
    }


def test_raters_cannot_see_who_wrote_what(session):
    session.rate("ann", session.items[0], scores(1, 2, 3))
    for name in ("session.json", "ratings.jsonl"):
        text = (session.folder / name).read_text(encoding="utf-8")
        assert A not in text and B not in text and "policies" not in text
    # nor by position: made the other way round, the session is the same
    again = RatingSession.create(session.folder.parent / "again", replies()[::-1])
    assert again.items == session.items
    for item in session.items:
        assert session.key["items"][item.id]["policies"] == [A if item.reply.endswith("a") else B]


def test_equal_replies_of_two_policies_are_rated_once(tmp_path):
    examples = [
        Example(turns=("hi",), references=("hello",), facts=("x",)),
        Example(turns=("so ?",), references=("no",)),
    ]
    made = replies_to(examples, ["hello", "yes"], A) + replies_to(examples, ["hello", "no"], B)
    session = RatingSession.create(tmp_path / "s", made)
    found = {item.reply: session.key["items"][item.id] for item in session.items}
    assert found["hello"] == {"policies": [A, B], "references": ["hello"], "facts": ["x"]}
    assert found["yes"]["policies"] == [A] and len(found) == 3


def test_order_is_each_raters_own_and_stays(tmp_path):
    made = [RatingSession.create(tmp_path / str(seed), replies(20), seed=seed) for seed in (0, 1)]
    orders = [[item.id for item in session.order(rater)] for session in made for rater in ("ann", "bo")]
    assert len({tuple(order) for order in orders}) == 4
    assert len({frozenset(order) for order in orders}) == 1
    assert [item.id for item in RatingSession(tmp_path / "0").order("ann")] == orders[0]
    # blind in order too: over many raters, either policy comes first about as often
    first = Counter(made[0].key["items"][made[0].order(f"rater {i}")[0].id]["policies"][0] for i in range(200))
    assert 70 < first[A] < 130


def test_the_last_rating_counts_and_all_are_kept(session):
    first, second = session.items[:2]
    session.rate("ann", first, scores(1, 1, 1))
    session.rate("bo", first, scores(2, 2, 2))
    session.rate("ann", second, scores(3, 3, 3))
    session.rate("ann", first, scores(5, 4, 0))
    assert session.ratings() == {
        ("ann", first.id): scores(5, 4, 0),
        ("bo", first.id): scores(2, 2, 2),
        ("ann", second.id): scores(3, 3, 3),
    }
    lines = session.path.read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["fluency"] for line in lines] == [1, 2, 3, 5]


def test_ratings_matrix(session):
    session.rate("bo", session.items[0], scores(1, 2, 3))
    session.rate("ann", session.items[2], scores(4, 5, 0))
    expected = np.full((2, 8), math.nan)
    expected[0, 2], expected[1, 0] = 5, 2
    np.testing.assert_array_equal(ratings_matrix(session, "relevance"), expected)
    with pytest.raises(ValueError, match="unknown aspect 'wit'"):
        ratings_matrix(session, "wit")


def test_ratings_matrix_before_any_rating(session):
    assert ratings_matrix(session, "fluency").shape == (0, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"fluency": 4, "relevance": 5}, "informativeness has no rating yet, so nothing is saved"),
        ({"fluency": None, "relevance": 5, "informativeness": 3}, "fluency has no rating"),
        (scores(4, 5, 6), "informativeness takes a whole number from 0 to 5, not 6"),
        (scores(-1, 5, 5), "fluency takes"),
        (scores(4, 2.5, 5), "relevance takes"),
        (scores(4, "5", 5), "relevance takes"),
        (scores(4, True, 5), "relevance takes"),
        (scores(4, math.nan, 5), "relevance takes"),
        (scores(4, 5, 3) | {"wit": 1}, "unknown aspect 'wit'"),
    ],
)
def test_what_is_no_rating_is_not_saved(session, given, message):
    with pytest.raises(ValueError, match=message):
        session.rate("ann", session.items[0], given)
    assert session.path.read_bytes() == b"" and session.ratings() == {}


def test_check_scores_takes_numpy_integers():
    assert check_scores(scores(*np.array([1, 2, 3]))) == scores(1, 2, 3)


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "\x00", "\ud800"])
def test_a_rater_has_a_name(session, name):
    with pytest.raises(ValueError, match="needs a name"):
        session.rate(name, session.items[0], scores(1, 2, 3))


def test_a_raters_name_has_one_form(session):
    session.rate("Zoë 李", session.items[0], scores(1, 2, 3))
    session.rate(" Zoe\u0308 李 ", session.items[0], scores(2, 2, 3))
    assert session.ratings() == {("Zoë 李", session.items[0].id): scores(2, 2, 3)}
    assert "李" in session.path.read_text(encoding="utf-8")


@pytest.mark.parametrize("cut", [1, 2, 30, 60])
def test_a_line_cut_short_costs_only_itself(session, cut):
    """Killed in the middle of a write: what came before and what comes after counts, that one is asked again."""
    for item in session.items[:2]:
        session.rate("李", item, scores(1, 2, 3))
    whole = session.path.read_bytes()
    session.path.write_bytes(whole[:-cut])
    if cut == 1:  # only the line break is missing
        assert len(session.ratings()) == 2
    else:
        with pytest.warns(UserWarning, match="line 2 is cut short"):
            assert list(session.ratings()) == [("李", session.items[0].id)]
    session.rate("李", session.items[2], scores(4, 5, 3))
    if cut == 1:
        assert len(session.ratings()) == 3
    else:
        with pytest.warns(UserWarning, match="line 2 is cut short"):
            assert [item for _, item in session.ratings()] == [session.items[0].id, session.items[2].id]


def test_a_line_cut_inside_a_character(session):
    session.rate("李", session.items[0], scores(1, 2, 3))
    line = session.path.read_bytes()
    session.path.write_bytes(line[: line.index("李".encode()) + 1])
    with pytest.warns(UserWarning, match="line 1 is cut short"):
        assert session.ratings() == {}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"item": "0" * 16, "rater": "ann", **scores(1, 2, 3)}, "a reply that is not in this session"),
        ({"rater": "ann", **scores(1, 2, 3)}, "no rating of this session: 'item'"),
        ({"item": 0, "rater": "ann", **scores(1, 2, 9)}, "informativeness takes"),
        ([1, 2], "no rating of this session"),
        ("text", "no rating of this session"),
    ],
)
def test_a_foreign_line_is_refused(session, record, message):
    session.rate("ann", session.items[0], scores(1, 2, 3))
    with open(session.path, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    with pytest.raises(ValueError, match=f"ratings.jsonl, line 2 is.*{message}"):
        session.ratings()


def change_text(made):
    made["items"][3]["reply"] += " !"


def change_seed(made):
    made["seed"] = 1


def drop_item(made):
    del made["items"][0]


def drop_field(made):
    del made["items"][0]["context"]


@pytest.mark.parametrize("change", [change_text, change_seed, drop_item, drop_field])
def test_a_changed_session_is_refused(session, change):
    path = session.folder / "session.json"
    made = json.loads(path.read_text(encoding="utf-8"))
    change(made)
    path.write_text(json.dumps(made), encoding="utf-8")
    with pytest.raises(ValueError, match="was changed after the session was made"):
        RatingSession(session.folder)


def test_a_foreign_key_is_refused(session, tmp_path):
    other = RatingSession.create(tmp_path / "other", replies(2))
    (session.folder / "key.json").write_bytes((other.folder / "key.json").read_bytes())
    with pytest.raises(ValueError, match="not the key of this session"):
        _ = RatingSession(session.folder).key


@pytest.mark.parametrize("text", ["[]", "{}", '{"items": {}}', '{"made_with": {}, "items": []}', "{torn"])
def test_a_damaged_key_is_told_in_a_sentence(session, text):
    (session.folder / "key.json").write_text(text)
    with pytest.raises(ValueError, match="key.json is not"):
        _ = RatingSession(session.folder).key
    (session.folder / "key.json").unlink()
    with pytest.raises(FileNotFoundError, match="put it back"):
        _ = RatingSession(session.folder).key


def test_create_refuses(session, tmp_path):
    with pytest.raises(ValueError, match="is in use"):
        RatingSession.create(session.folder, replies())
    with pytest.raises(ValueError, match="at least one reply"):
        RatingSession.create(tmp_path / "new", [])
    assert not (tmp_path / "new").exists()
    (tmp_path / "empty").mkdir()
    assert RatingSession.create(tmp_path / "empty", replies()).items == session.items
    with pytest.raises(FileNotFoundError, match="no rating session in .*nowhere"):
        RatingSession(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="not in the session"):
        stranger = next(item for item in session.items if item.context[0] == "turn 3")
        RatingSession.create(tmp_path / "one", replies(1)).rate("ann", stranger, scores(1, 2, 3))


def test_sitting_goes_on_where_it_was(session):
    sitting = Sitting(session, "ann")
    order = session.order("ann")
    seen = []
    for number in (1, 2, 3):
        seen.append(sitting.item)
        sitting.rate(scores(number, number, number))
    assert seen == order[:3] and sitting.item == order[3]
    resumed = Sitting(RatingSession(session.folder), "ann")
    assert resumed.item == order[3] and len(resumed.rated) == 3
    assert Sitting(session, "bo").position == 0


def test_sitting_back_mends_a_rating(session):
    sitting = Sitting(session, "ann")
    sitting.back()
    assert sitting.position == 0
    for _ in session.items:
        sitting.rate(scores(1, 1, 1))
    assert sitting.item is None
    with pytest.raises(ValueError, match="every reply is rated"):
        sitting.rate(scores(1, 1, 1))
    sitting.back()
    sitting.back()
    assert sitting.item == sitting.order[-2]
    sitting.rate(scores(5, 5, 5))
    assert sitting.item is None  # the last one has its rating still
    assert sitting.rated[sitting.order[-2].id] == scores(5, 5, 5)
    assert sitting.rated[sitting.order[-1].id] == scores(1, 1, 1)


@pytest.mark.parametrize("text", ["4 5 3", "453", "4,5,3", " 4, 5  3 ", "4\t5\t3"])
def test_parse_scores(text):
    assert parse_scores(text) == scores(4, 5, 3)


@pytest.mark.parametrize("text", ["", "4 5", "4 5 3 2", "4 5 6", "4 -5 3", "4.5 5 3", "good", "٤ ٥ ٣"])
def test_parse_scores_refuses(text):
    with pytest.raises(ValueError, match="type 3 digits from 0 to 5, such as 4 5 3, for fluency, relevance"):
        parse_scores(text)


WRITER = """
import sys
from grpo_from_scratch.evaluation.ratings import ASPECTS, Sitting, RatingSession
session = RatingSession(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
for turn in range(25):
    for item in session.items:
        session.rate(sys.argv[2], item, dict.fromkeys(ASPECTS, turn % 6))
"""


def test_several_processes_write_one_file(session):
    raters = ["ann", "李", "bo" * 40]
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, session.folder, rater],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for rater in raters
    ]
    for writer in writers:
        writer.stdout.readline()
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    for writer in writers:
        writer.communicate()
    lines = session.path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines if line]
    assert Counter(record["rater"] for record in records) == dict.fromkeys(raters, 25 * 8)
    assert len({record["item"] for record in records}) == 8 and len(session.ratings()) == 24
