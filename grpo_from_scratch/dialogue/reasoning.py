"""Any task of the package reasoning-gym: generated questions, and what a reply to one is worth.

An example names its question (``Example.item``) by the task, the generator's seed and the place in its sequence, so
that whoever judges the reply makes the same question again, with all that the task's own judge looks at.

Three traps of these tasks, and what is done about them:

- Many judges pay a part of the score for a right answer *inside* a longer text, and some the whole: a reply that lists
  every possible answer earns by it. ``right`` pays nothing for a reply that has words around the written solution.
- Many judges pay .01 or .05 for anything at all, and one pays 1 for "?" where its answer is "False". What nonsense
  earns is taken off (``partly_right``), and where nonsense earns 1 only the written answer counts.
- Some judges run the reply through ``eval`` or sympy's parser, which evaluates too: a reply could run code. Those tasks
  are refused.
"""

import difflib
import functools
import inspect
import re
import sys
from typing import Any

from grpo_from_scratch.dialogue.dataset import Example, check_split, split_of
from grpo_from_scratch.dialogue.extras import extra
from grpo_from_scratch.distributed.randomness import key_seed

COUNTS = {"train": 1000, "tuning": 100, "report": 100}
RUNS_CODE = re.compile(r"\b(eval|exec)\(|\bsympy\b")
NONSENSE = "?"
TAGGED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
SIZE = 20_000  # questions of a generator; the most that word_ladder makes, and some make theirs in advance


def reasoning_task(name: str, split: str, *, count: int | None = None, seed: int = 0) -> list[Example]:
    """Questions of one task, at the task's own default settings.

    The question decides the split. Where a task has many right answers and names none, the reference is an empty text.

    Args:
        name: the task's name in reasoning-gym, "chain_sum" for one.
        split: "train", "tuning" or "report".
        count: how many, at most; a longer list begins with the shorter one. Default: 1000 to train on, 100 to hold out.
        seed: another seed, other questions.

    Raises:
        ValueError: an unknown split or task, one whose judge runs replies as code, or one with too few questions.
        ImportError: the package is not installed.
    """
    check_split(split)
    count = COUNTS[split] if count is None else count
    generator = _generator(name, seed)
    examples: list[Example] = []
    for place in range(SIZE):
        if len(examples) == count:
            break
        entry = generator[place]
        question = entry["question"].strip()
        if split_of(question) == split:
            item = f"{name}:{seed}:{place}"
            examples.append(Example((question,), (entry["answer"] or "",), topic=f"reasoning:{name}", item=item))
    if not examples and count:
        raise ValueError(f"reasoning:{name} has no question in the {split!r} split")
    return examples


def right(item: str, reply: str) -> float:
    """1 if the reply is a right answer to ``Example.item``'s question and nothing more, else 0.

    The answer is what stands between the last ``<answer>`` and ``</answer>``, or else the whole reply.
    """
    entry, answer, score, floor = _judged(item, reply)
    return float(answer == entry["answer"] or (score >= 1 > floor and not _contains(answer, entry["answer"])))


def partly_right(item: str, reply: str) -> float:
    """The task's own score in [0, 1], with what nonsense earns taken off: 0 for nonsense, 1 for a right answer.

    Pays for parts of an answer in the tasks that know parts (sudoku, word_sorting), and, in most others, for a right
    answer inside a longer text: watch that replies do not grow into lists of answers.
    """
    entry, answer, score, floor = _judged(item, reply)
    if answer == entry["answer"]:
        return 1.0
    return max(score - floor, 0.0) / (1 - floor) if floor < 1 else 0.0


def _contains(answer: str, solution: str | None) -> bool:
    """Whether the answer is the solution with something around it, which some judges take for right."""
    return bool(solution) and answer != solution and solution in answer and len(answer.split()) > len(solution.split())


def _judged(item: str, reply: str) -> tuple[dict[str, Any], str, float, float]:
    """The question, the answer in the reply, and the task's scores of this answer and of nonsense."""
    if not item:
        raise ValueError("only a reasoning task's own questions have such a judge: take data reasoning:TASK")
    entry, floor = _entry(item)
    tagged = TAGGED.findall(reply)
    answer = (tagged[-1] if tagged else reply).strip()
    return entry, answer, _score(item, entry, answer) if answer else 0.0, floor


def _score(item: str, entry: dict[str, Any], answer: str) -> float:
    name, seed, _ = item.split(":")
    try:
        return min(max(float(_generator(name, int(seed)).score_answer(answer, entry)), 0.0), 1.0)
    except Exception:  # a judge that fails on a malformed answer has found it wrong
        return 0.0


@functools.lru_cache(maxsize=4096)
def _entry(item: str) -> tuple[dict[str, Any], float]:
    """The question, and what nonsense earns on it."""
    name, seed, place = item.split(":")
    entry = _generator(name, int(seed))[int(place)]
    return entry, _score(item, entry, NONSENSE)


@functools.lru_cache(maxsize=16)
def _generator(name: str, seed: int):
    extra("reasoning_gym", "reasoning", f"reasoning:{name}")
    from reasoning_gym.dataset import ProceduralDataset
    from reasoning_gym.factory import DATASETS, create_dataset

    tasks = {task: kind for task, (kind, _) in DATASETS.items() if task != "composite"}  # which is a mixture of others
    names = sorted(task for task, kind in tasks.items() if _is_safe(kind, ProceduralDataset))
    if name not in tasks:
        nearest = difflib.get_close_matches(name, names, n=3) or names
        raise ValueError(f"reasoning-gym has no task {name!r}; the nearest: {', '.join(nearest)}")
    if name not in names:
        raise ValueError(f"the judge of reasoning:{name} may run a reply as code, so it is refused; take another task")
    # An entry depends on seed + place, so seeds that are close would share most questions.
    return create_dataset(name, seed=key_seed(seed, f"reasoning {name}") % 2**31, size=SIZE)


def _is_safe(kind: type, base: type) -> bool:
    """Whether the judge is the base class's, which compares texts, or stands in a file in which nothing evaluates."""
    return kind.score_answer is base.score_answer or not RUNS_CODE.search(
        inspect.getsource(sys.modules[kind.__module__])
    )
