"""A rank that raises, hangs, dies or goes another way ends the job, and what is said names it."""

import pytest


@pytest.mark.parametrize(
    "fault, said",
    [
        ("raises", ["ValueError: the reward of step 3 is broken"]),
        ("hangs", ["this rank waited at 'rewards of step 3', and rank 1 did not arrive within 5 s, or died"]),
        ("strays", ["rank 0 is at 'rewards of step 3'; rank 1 is at 'gradients of step 3'"]),
        ("dies", ["rank      : 1 (local_rank: 1)", "exitcode  : -9"]),
    ],
)
def test_a_faulty_rank_ends_the_job_and_is_named(torchrun, fault, said):
    report = torchrun("faults.py", fault, code=1).stderr
    assert all(text in report for text in said), report
