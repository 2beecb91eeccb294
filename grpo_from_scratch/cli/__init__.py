"""The ``grpo`` command."""

# ruff: noqa: F401  importing registers their commands
from grpo_from_scratch.cli import chat, data, diagnose, doctor, measure, noise, rate, train
from grpo_from_scratch.cli.app import app


def main() -> None:
    app()
