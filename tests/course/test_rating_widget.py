"""The rating widget in a plain kernel: what its handlers save and what it shows. In a browser: test_browser.py."""

import pytest

from grpo_from_scratch.course.rating_widget import RatingWidget
from grpo_from_scratch.evaluation.ratings import ASPECTS, RatingSession, Reply


@pytest.fixture
def session(tmp_path):
    replies = [
        Reply(p, (f"<b>turn</b> {i}",), f"{p} & 好 {i}", ("i fish .",)) for p in ("alpha", "beta") for i in range(2)
    ]
    return RatingSession.create(tmp_path / "s", replies)


def scores(*values):
    return dict(zip(ASPECTS, values, strict=True))


def given(session):
    """This rater's ratings, in the order of the replies; None for the ones without."""
    ratings = session.ratings()
    return [tuple(r.values()) if (r := ratings.get(("ann", item.id))) else None for item in session.order("ann")]


def test_two_ratings_outlive_the_widget(session):
    """NB-03: no front end, two ratings by the handler, the object dropped, a new one on the same file."""
    widget = RatingWidget(session.folder, "ann")
    widget.submit("4 5 3")
    widget.submit("012")
    del widget
    again = RatingWidget(session.folder, "ann")
    assert given(session) == [(4, 5, 3), (0, 1, 2), None, None]
    assert again.sitting.item == session.order("ann")[2]
    assert str(again).startswith("Reply 3 of 4; 2 of 4 rated\n   1  4 5 3  ")


def test_nothing_is_chosen_at_first_and_nothing_unchosen_is_saved(session):
    widget = RatingWidget(session, "ann")
    assert [row.value for row in widget.rows.values()] == [None] * 3
    widget.choose()
    assert "Not saved: fluency has no rating yet, so nothing is saved." in widget.message.value
    widget.rows["fluency"].value = 0
    widget.rows["relevance"].value = 5
    widget.choose()
    assert "Not saved: informativeness has no rating" in widget.message.value
    assert session.ratings() == {}
    widget.rows["informativeness"].value = 0
    widget.choose()
    assert given(session)[0] == (0, 5, 0)
    assert [row.value for row in widget.rows.values()] == [None] * 3  # not carried over to the next reply


def test_enter_in_the_field_saves_and_empties_it(session):
    widget = RatingWidget(session, "ann")
    for _ in range(2):  # the same twice in a row
        widget.field.value = "444"
        assert widget.field.value == ""
    assert given(session) == [(4, 4, 4), (4, 4, 4), None, None]


@pytest.mark.parametrize("typed", ["4 5", "7 1 1", "four"])
def test_nonsense_is_told_and_stays_in_the_field(session, typed):
    widget = RatingWidget(session, "ann")
    widget.field.value = typed
    assert "Not saved: type 3 digits from 0 to 5" in widget.message.value
    assert widget.field.value == typed and session.ratings() == {}


def test_back_shows_a_rating_to_mend(session):
    widget = RatingWidget(session, "ann")
    for typed in ("111", "222", "333", "444"):
        widget.field.value = typed
    assert "Every reply is rated" in widget.shown.value and "Every reply is rated" in str(widget)
    widget.field.value = "555"
    assert "Not saved: every reply is rated; go back to change a rating." in widget.message.value
    widget.field.value = "b"
    widget.field.value = "B "
    assert [row.value for row in widget.rows.values()] == [3, 3, 3] and "Reply 3 of 4" in widget.shown.value
    widget.field.value = "0 0 0"
    assert given(session) == [(1, 1, 1), (2, 2, 2), (0, 0, 0), (4, 4, 4)]


def test_shown_is_blind_and_escaped(session):
    replies = [Reply(p, ("<b>hi</b>",), f"<i>{i}</i> & 好") for i, p in enumerate(("runs/x/policy", "runs/y/policy"))]
    session = RatingSession.create(session.folder.parent / "t", replies)
    widget = RatingWidget(session, "ann")
    assert "&lt;b&gt;hi&lt;/b&gt;" in widget.shown.value and "&lt;i&gt;" in widget.shown.value
    bundle = widget._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    for text in (widget.shown.value, bundle["text/plain"]):
        assert "runs/" not in text and str(session.folder) not in text


def test_a_disk_that_fails_is_told(session, monkeypatch):
    def full(*_):
        raise OSError("no space left")

    widget = RatingWidget(session, "ann")
    monkeypatch.setattr(RatingSession, "rate", full)
    widget.field.value = "444"
    assert "Not saved: no space left." in widget.message.value and "Reply 1 of 4" in widget.shown.value
