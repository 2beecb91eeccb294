"""The ``grpo`` command."""

from grpo_from_scratch.cli import data, doctor, measure, noise, rate, train  # noqa: F401  importing registers them
from grpo_from_scratch.cli.app import app


def main() -> None:
    app()
