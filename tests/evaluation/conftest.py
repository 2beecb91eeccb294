import pytest

from grpo_from_scratch.evaluation.schema import Table
from simulated_runs import all_runs, table_of


@pytest.fixture(scope="session")
def table() -> Table:
    """Two difficulties with every row, ten runs each on two initial policies."""
    return table_of({"mixed": all_runs(), "even": all_runs(noise=0.02)})
