"""reasoning-gym's tasks as data and reward. The judges are the package's; what is tested is what we let through."""

import subprocess
import sys

import pytest

from grpo_from_scratch.dialogue.dataset import SPLITS, Example, columns
from grpo_from_scratch.dialogue.readers import load_examples
from grpo_from_scratch.dialogue.reasoning import partly_right, reasoning_task, right
from grpo_from_scratch.rewards import parse_reward, score

gym = pytest.importorskip("reasoning_gym")

# A judge pays a share of its score, and another all of it, for the right answer with words around it.
GENEROUS = ("chain_sum", "gsm_symbolic", "kakurasu", "knights_knaves", "survo", "sudoku", "word_sorting", "arc_1d")


def test_questions_are_answered_by_their_references():
    for example in load_examples("reasoning:chain_sum", "train", count=20):
        sum_of = example.turns[0].split(":")[-1].removesuffix("= ?").removesuffix("=").strip(" ?.")
        total = sum(int(part) for part in sum_of.replace("- ", "+ -").split("+"))
        assert example.references == (str(total),)


def test_questions_do_not_depend_on_how_many_and_differ_by_seed_and_split():
    few, many = reasoning_task("leg_counting", "train", count=5), reasoning_task("leg_counting", "train", count=15)
    assert many[:5] == few
    neighbours = reasoning_task("leg_counting", "train", count=15, seed=1)
    assert not {e.turns for e in neighbours} & {e.turns for e in many}  # reasoning-gym's own seeds 0 and 1 share 14
    asked = [{e.turns for e in reasoning_task("leg_counting", split, count=30)} for split in SPLITS]
    assert not asked[0] & asked[1] | asked[0] & asked[2] | asked[1] & asked[2]


@pytest.mark.parametrize("name", GENEROUS)
def test_words_around_the_answer_earn_nothing(name):
    for example in reasoning_task(name, "report", count=3):
        (answer,) = example.references
        assert right(example.item, answer) == right(example.item, f" {answer}\n") == 1
        assert right(example.item, f"{answer} or something else") == right(example.item, f"? {answer}") == 0
        assert partly_right(example.item, answer) == 1


@pytest.mark.parametrize("name", ["power_function", "fraction_simplification", "sentence_reordering", "emoji_mystery"])
def test_nonsense_earns_nothing_where_the_judge_pays_for_it(name):
    (example,) = reasoning_task(name, "report", count=1)
    for reply in ("?", "a", "", "   "):
        assert right(example.item, reply) == partly_right(example.item, reply) == 0


def test_nonsense_that_the_judge_calls_right_earns_nothing():
    examples = reasoning_task("game_of_life_halting", "train", count=12)
    (no,) = [e for e in examples if e.references == ("False",)][:1]
    assert right(no.item, "?") == partly_right(no.item, "?") == 0
    assert right(no.item, "False") == partly_right(no.item, "False") == 1


def test_a_part_of_the_answer_earns_a_part_in_tasks_that_know_parts():
    (example,) = reasoning_task("mini_sudoku", "report", count=1)
    solution = example.references[0].splitlines()
    wrong = "\n".join([*solution[:3], " ".join(solution[3].split()[::-1])])
    assert 0 < partly_right(example.item, wrong) < 1
    assert right(example.item, wrong) == 0


def test_an_answer_in_tags_is_taken_from_the_last():
    (example,) = reasoning_task("gcd", "report", count=1)
    (answer,) = example.references
    assert right(example.item, f"first <answer>0</answer>, no: <answer> {answer} </answer>") == 1
    assert right(example.item, f"<answer>{answer}</answer> no: <answer>0</answer>") == 0


def test_a_judge_that_fails_on_a_malformed_answer_has_found_it_wrong():
    (example,) = reasoning_task("prime_factorization", "report", count=1)
    assert right(example.item, "two times") == 0


@pytest.mark.parametrize("name", ["countdown", "puzzle24", "n_queens", "spiral_matrix", "polynomial_multiplication"])
def test_judges_that_evaluate_replies_are_refused(name):
    with pytest.raises(ValueError, match="may run a reply as code"):
        reasoning_task(name, "train", count=1)


def test_unknown_tasks_name_the_nearest():
    with pytest.raises(ValueError, match="no task 'chain_sums'; the nearest: chain_sum"):
        load_examples("reasoning:chain_sums", "train")
    with pytest.raises(ValueError, match="no task 'composite'"):
        load_examples("reasoning:composite", "train")
    with pytest.raises(ValueError, match="no task 'nosuch'; the nearest: ab, ") as error:
        load_examples("reasoning:nosuch", "train")
    assert "composite" not in str(error.value), "what is advised is not refused"


def test_it_is_a_reward():
    examples = reasoning_task("lcm", "train", count=2)
    replies = [examples[0].references[0], "1"]
    for name in ("reasoning", "reasoning_partial"):
        assert score(parse_reward(name), ["", ""], replies, columns(examples)).tolist() == [1, 0]


def test_other_data_have_no_such_judge():
    with pytest.raises(RuntimeError, match="take data reasoning:TASK"):
        score(parse_reward("reasoning"), [""], ["1"], columns([Example(("hi",), ("hello",))]))


AUDIT = """
import sys
from reasoning_gym.factory import DATASETS
from grpo_from_scratch.dialogue.reasoning import reasoning_task, right

HOSTILE = "grpo_hostile"
SHAPES = ("__import__('os').{}", "[{} for x in (1,)]", "{}()", "({})", "[{}]")
found, task = set(), None

def watch(event, arguments):
    names = getattr(arguments[0], "co_names", "") if event == "exec" else ""
    if event in ("compile", "exec") and task and HOSTILE in f"{arguments} {names}":
        found.add(task)

sys.addaudithook(watch)
tried = 0
for name in sorted(DATASETS):
    try:
        examples = reasoning_task(name, "train", count=1)
    except ValueError:
        continue
    tried += 1
    for example in examples:
        for shape in SHAPES:
            task = name
            right(example.item, shape.format(HOSTILE))
            task = None
assert tried > 80, tried
task = "control"
try:
    eval(HOSTILE)
except NameError:
    pass
assert found == {"control"}, found
"""


def test_no_accepted_judge_compiles_a_reply():
    """Python's own audit events see every eval, whoever calls it."""
    done = subprocess.run([sys.executable, "-c", AUDIT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
