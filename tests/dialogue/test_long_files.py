"""However long a data file is, reading it takes little memory."""

import json
import random
import subprocess
import sys

import pytest

import published

MEASURE = """
import resource, sys, tracemalloc
from grpo_from_scratch.dialogue.readers import stream_examples
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
count = sum(1 for _ in stream_examples(sys.argv[1]))
print(count, peak() - before)
"""


def write_convai2(file, size: int):
    words = random.Random(0)
    while file.tell() < size:
        said = [(f"u {words.random()} " * 8, f"r {words.random()} " * 8) for _ in range(7)]
        file.write(published.convai2(conversations=[said]).replace("|no|", "|" + "candidate " * 100 + "|"))


def write_wizard(file, size: int):
    words, records_ = random.Random(0), published.wizard()
    file.write("[")
    while file.tell() < size:
        for record in records_:
            record["dialog"][0]["text"] = f"{words.random()} tea?"
            for turn in record["dialog"]:
                turn["retrieved_passages"] = [{"Tea": ["Tea is é. " * 600]}] * 2
            file.write(json.dumps(record, ensure_ascii=False) + ",")
    file.write(json.dumps(records_[0]) + "]")


@pytest.mark.parametrize("size", [80, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("spec", "write"), [("convai2", write_convai2), ("wizard", write_wizard)])
def test_long_file_needs_little_memory(tmp_path, spec, write, size):
    """Megabytes that reading adds to a process, whatever the file's: a few pieces, and 16 of remembered contexts."""
    path = tmp_path / "data"
    with path.open("w", encoding="utf-8") as file:
        write(file, size << 20)
    made = subprocess.run([sys.executable, "-c", MEASURE, f"{spec}:{path}"], capture_output=True, text=True, check=True)
    count, grown = map(float, made.stdout.split())
    assert count > size * (20 if spec == "wizard" else 100)
    assert grown < 40, f"{size} MB took {grown:.0f} MB"
