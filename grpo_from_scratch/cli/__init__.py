"""The ``grpo`` command."""

from grpo_from_scratch.cli import (  # noqa: F401  importing registers their commands
    data,
    diagnose,
    doctor,
    measure,
    noise,
    rate,
    train,
)
from grpo_from_scratch.cli.app import app


def main() -> None:
    app()
