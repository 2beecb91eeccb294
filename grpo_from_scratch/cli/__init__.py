"""The ``grpo`` command."""

from grpo_from_scratch.cli import data, measure, noise, train  # noqa: F401  importing registers their commands, in order
from grpo_from_scratch.cli.app import app


def main() -> None:
    app()
