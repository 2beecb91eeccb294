"""The ``grpo`` command."""

from grpo_from_scratch.cli import doctor, measure, noise, rate, train  # noqa: F401  importing registers their commands
from grpo_from_scratch.cli.app import app


def main() -> None:
    app()
