import unicodedata

import pytest

from grpo_from_scratch.dialogue.words import distinct_pairs, named, word_pairs, words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Don't, 3.5!", ["don", "t", "3", "5"]),
        ("Café_au — lait", ["café", "au", "lait"]),
        ("cafe\u0301", ["café"]),  # an accent as a character of its own
        ("привет, мир", ["привет", "мир"]),
        ("पढ़ना है", ["पढ़ना", "है"]),
        ("我在北京2024年", ["我", "在", "北", "京", "2024", "年"]),
        ("カメラ。", ["カ", "メ", "ラ"]),
        ("รักแมว", ["ร", "\u0e31", "ก", "แ", "ม", "ว"]),  # Thai: vowels and tone marks count, too
        ("ok👍👍", ["ok", "👍", "👍"]),
        ("。！ …", []),
    ],
)
def test_words(text, expected):
    assert words(text) == [unicodedata.normalize("NFC", word) for word in expected]


def test_word_pairs_keep_order_and_repeats():
    assert word_pairs("A b , a b .") == [("a", "b"), ("b", "a"), ("a", "b")]
    assert word_pairs("ok .") == [("ok",)]
    assert word_pairs("...") == []


def test_distinct_pairs_by_hand():
    assert [distinct_pairs(text) for text in ("a b c", "a b a b", "a", "", "x x x x")] == [1.0, 2 / 3, 1.0, 0.0, 1 / 3]


def test_named_finds_whole_words_in_order():
    assert named("I have Two Cats, in may!", ["cats", "two cats", "cats two", "cat", "may", "?", ""]) == [
        "cats",
        "two cats",
        "may",
    ]
    assert named("我住在北京。", ["北京", "京北"]) == ["北京"]
