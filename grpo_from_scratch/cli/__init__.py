"""The ``grpo`` command."""

from grpo_from_scratch.cli import measure, train  # noqa: F401  importing them registers their commands, in this order
from grpo_from_scratch.cli.app import app


def main() -> None:
    app()
