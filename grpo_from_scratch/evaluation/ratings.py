"""Human ratings of replies: blind, in an order of each rater's own, saved at once, and never lost.

A session is a folder:

    session.json    what raters see: contexts and replies, each under a hash of its text, but not who wrote which
    key.json        who wrote which, and what the automatic metrics need; read only when the ratings are judged
    ratings.jsonl   one line for each rating, appended; where a rater rated a reply again, the later line counts

Two policies that wrote the same reply to the same context share one item, so nobody rates it twice.
"""

import functools
import hashlib
import json
import os
import re
import unicodedata
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from grpo_from_scratch.dialogue.dataset import Example
from grpo_from_scratch.distributed.randomness import numpy_generator
from grpo_from_scratch.evaluation.agreement import SCALE

ASPECTS = ("fluency", "relevance", "informativeness")
Scores = dict[str, int]  # a rating on SCALE for each of ASPECTS


@dataclass(frozen=True)
class Reply:
    """A reply to be rated, who wrote it, and what the automatic metrics compare it with."""

    policy: str
    context: tuple[str, ...]  # the turns before the reply, oldest first
    text: str
    background: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Item:
    """What a rater sees."""

    background: tuple[str, ...]
    context: tuple[str, ...]
    reply: str

    @functools.cached_property
    def id(self) -> str:
        return _digest([self.background, self.context, self.reply])


def replies_to(examples: Sequence[Example], texts: Sequence[str], policy: str) -> list[Reply]:
    """One policy's replies, a text for each example."""
    return [
        Reply(policy, example.turns, text, example.background, example.references, example.facts)
        for example, text in zip(examples, texts, strict=True)
    ]


class RatingSession:
    """The session in a folder. It holds no ratings of its own: they are read from the file each time, so several
    raters' processes may work at once, and a kernel may die.

    Raises:
        FileNotFoundError: the folder has no session.
        ValueError: session.json is not what ``create`` wrote.
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder)
        path = self.folder / "session.json"
        if not path.is_file():
            raise FileNotFoundError(f"no rating session in {self.folder}: there is no {path}")
        made = _read_json(path)
        try:
            self.seed = made["seed"]
            self.items = tuple(Item(tuple(i["background"]), tuple(i["context"]), i["reply"]) for i in made["items"])
            unchanged = made["digest"] == _session_digest(self.items, self.seed)
        except (KeyError, TypeError):
            unchanged = False
        if not unchanged:
            raise ValueError(
                f"{path} was changed after the session was made, so its ratings may be of other texts: "
                "restore it, or make a new session in another folder"
            )
        self._by_id = {item.id: item for item in self.items}

    @classmethod
    def create(
        cls, folder: str | Path, replies: Iterable[Reply], *, seed: int = 0, made_with: dict[str, Any] | None = None
    ) -> "RatingSession":
        """A new session, whole or not at all.

        Args:
            folder: a new or an empty one.
            replies: of one or more policies.
            seed: of the order in which each rater sees the replies.
            made_with: kept in the key, for whoever wants to make the session again.

        Raises:
            ValueError: no replies, or a folder that is in use.
        """
        folder, key = Path(folder), {}
        replies = list(replies)
        if not replies:
            raise ValueError("a rating session needs at least one reply")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ValueError(f"{folder} is in use: a rating session needs a new or an empty folder")
        items = {}
        for reply in replies:
            item = Item(tuple(reply.background), tuple(reply.context), reply.text)
            items[item.id] = item
            entry = key.setdefault(item.id, {"policies": [], "references": [], "facts": []})
            for name, values in zip(entry, ((reply.policy,), reply.references, reply.facts), strict=True):
                entry[name].extend(value for value in values if value not in entry[name])
        items = tuple(items[id] for id in sorted(items))  # in an order that says nothing of the policies
        made = {"seed": seed, "aspects": ASPECTS, "digest": _session_digest(items, seed), "items": []}
        made["items"] = [{"id": item.id, **asdict(item)} for item in items]
        partial = folder.with_name(folder.name + ".partial")
        partial.mkdir(parents=True, exist_ok=True)
        for name, content in (("session.json", made), ("key.json", {"made_with": made_with or {}, "items": key})):
            text = json.dumps(content, indent=1, ensure_ascii=False)
            (partial / name).write_text(text + "\n", encoding="utf-8")
        (partial / "ratings.jsonl").touch()
        if folder.exists():
            folder.rmdir()
        partial.rename(folder)
        return cls(folder)

    @property
    def path(self) -> Path:
        """The file of the ratings."""
        return self.folder / "ratings.jsonl"

    @functools.cached_property
    def key(self) -> dict[str, Any]:
        """{"made_with": …, "items": {id: {"policies", "references", "facts"}}}: for judging, not for raters.

        Raises:
            FileNotFoundError: the key was taken away.
            ValueError: the key is of other items.
        """
        path = self.folder / "key.json"
        if not path.is_file():
            raise FileNotFoundError(f"there is no {path}, which says who wrote what: put it back beside session.json")
        key = _read_json(path)
        try:
            known = "made_with" in key and key["items"].keys() == self._by_id.keys()
        except (KeyError, TypeError, AttributeError):
            known = False
        if not known:
            raise ValueError(f"{path} is not the key of this session: it names other replies")
        return key

    def order(self, rater: str) -> list[Item]:
        """The items as this rater sees them: shuffled by (seed, rater), so that no two raters tire at the same ones."""
        generator = numpy_generator(self.seed, f"rating order of {check_rater(rater)}")
        return [self.items[i] for i in generator.permutation(len(self.items))]

    def rate(self, rater: str, item: Item, scores: Mapping[str, int | None]) -> None:
        """Save a rating: appended as one line, and on the disk when this returns.

        Raises:
            ValueError: an aspect without a choice, an unknown one, a rating off the scale, an item of another session,
                or a rater without a name. Nothing is saved then.
            OSError: the file cannot be written, or the disk is full.
        """
        if item.id not in self._by_id:
            raise ValueError(f"this reply is not in the session of {self.folder}")
        record = {"item": item.id, "rater": check_rater(rater), **check_scores(scores)}
        record["time"] = datetime.now(UTC).isoformat(timespec="seconds")
        _append(self.path, json.dumps(record, ensure_ascii=False).encode())

    def ratings(self) -> dict[tuple[str, str], Scores]:
        """{(rater, item id): scores}, the last of each.

        A line that a kill or a full disk cut short is passed over with a warning: its reply counts as not rated.

        Raises:
            ValueError: a whole line that is no rating of this session, by file and line.
        """
        found = {}
        lines = self.path.read_bytes().split(b"\n") if self.path.exists() else []
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError:
                warnings.warn(f"{self.path}, line {number} is cut short and does not count: rate again", stacklevel=2)
                continue
            try:
                rater, scores = check_rater(record["rater"]), check_scores({name: record.get(name) for name in ASPECTS})
                if record["item"] not in self._by_id:
                    raise ValueError("it rates a reply that is not in this session")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{self.path}, line {number} is no rating of this session: {error}") from None
            found[rater, record["item"]] = scores
        return found


def ratings_matrix(session: RatingSession, aspect: str) -> np.ndarray:
    """(raters, items) ratings of one aspect, NaN where there is none: raters by name, items as in ``session.items``.

    Raises:
        ValueError: an unknown aspect.
    """
    if aspect not in ASPECTS:
        raise ValueError(f"unknown aspect {aspect!r}; there are {', '.join(ASPECTS)}")
    ratings = session.ratings()
    raters = sorted({rater for rater, _ in ratings})
    rows = [[ratings.get((rater, item.id), {}).get(aspect, np.nan) for item in session.items] for rater in raters]
    return np.array(rows, dtype=float).reshape(len(raters), len(session.items))


class Sitting:
    """One rater's way through a session: the first reply without a rating, then the next, and back to mend one.

    Attributes:
        position: which of ``order`` is shown; the length of ``order`` when all are rated.
    """

    def __init__(self, session: RatingSession, rater: str):
        self.session, self.rater = session, check_rater(rater)
        self.order = session.order(rater)
        self.position = self._first_unrated()

    @property
    def item(self) -> Item | None:
        """The reply to rate now; None when all are rated."""
        return self.order[self.position] if self.position < len(self.order) else None

    @property
    def rated(self) -> dict[str, Scores]:
        """This rater's ratings, by item id."""
        return {item: scores for (rater, item), scores in self.session.ratings().items() if rater == self.rater}

    def rate(self, scores: Mapping[str, int | None]) -> None:
        """Save a rating of this reply and go to the first reply without one. Raises as ``RatingSession.rate`` does."""
        if self.item is None:
            raise ValueError("every reply is rated; go back to change a rating")
        self.session.rate(self.rater, self.item, scores)
        self.position = self._first_unrated()

    def back(self) -> None:
        """To the reply before this one, in this rater's order; the first one stays."""
        self.position = max(self.position - 1, 0)

    def _first_unrated(self) -> int:
        rated = self.rated
        return next((i for i, item in enumerate(self.order) if item.id not in rated), len(self.order))


def transcript(item: Item) -> list[tuple[str, str]]:
    """(who, text) of what comes before the reply, which is B's: what B knows, then the turns, the last of them A's."""
    turns = [("A" if (len(item.context) - i) % 2 else "B", turn) for i, turn in enumerate(item.context)]
    return [("B knows", line) for line in item.background] + turns


def parse_scores(text: str) -> Scores:
    """Typed ratings in the order of ASPECTS: "4 5 3", "4,5,3" or "453".

    Raises:
        ValueError: anything else, saying what to type.
    """
    digits = re.sub(r"[\s,]+", "", text)
    if len(digits) != len(ASPECTS) or any(digit not in map(str, SCALE) for digit in digits):
        raise ValueError(
            f"type {len(ASPECTS)} digits from {SCALE[0]} to {SCALE[-1]}, such as 4 5 3, for {', '.join(ASPECTS)}"
            + (f": {text.strip()!r} is something else" if digits else "")
        )
    return dict(zip(ASPECTS, map(int, digits), strict=True))


def check_scores(scores: Mapping[str, int | None]) -> Scores:
    """The scores, one for each of ASPECTS; refused where one is missing, unknown or off the scale."""
    for name in scores.keys() - set(ASPECTS):
        raise ValueError(f"unknown aspect {name!r}; there are {', '.join(ASPECTS)}")
    for name in ASPECTS:
        score = scores.get(name)
        if score is None:
            raise ValueError(f"{name} has no rating yet, so nothing is saved")
        if isinstance(score, bool) or score not in SCALE:
            raise ValueError(f"{name} takes a whole number from {SCALE[0]} to {SCALE[-1]}, not {score!r}")
    return {name: int(scores[name]) for name in ASPECTS}


def check_rater(name: str) -> str:
    """The rater's name, trimmed and in one Unicode form, so that "é" typed on two machines is one person."""
    trimmed = unicodedata.normalize("NFC", name).strip()
    if not trimmed or not trimmed.isprintable():
        raise ValueError(f"a rater needs a name of visible characters, not {name!r}")
    return trimmed


def _append(path: Path, line: bytes) -> None:
    """A single write to a file in append mode, so that lines of several processes do not mix. After a line that was cut
    short it begins with a line break, so that the two do not become one; another's line that is just being written may
    look like that, and then a blank line is left, which readers pass over."""
    with open(path, "a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - 1, 0))
        data = (b"\n" if file.read(1) not in (b"", b"\n") else b"") + line + b"\n"
        if file.write(data) != len(data):
            raise OSError(f"{path} took only a part of the rating (is the disk full?): it is not saved")
        os.fsync(file.fileno())


def _session_digest(items: Sequence[Item], seed: int) -> str:
    return _digest([seed, ASPECTS, [item.id for item in items]])


def _digest(content: Any) -> str:
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): restore it, or make a new session in another folder") from None
