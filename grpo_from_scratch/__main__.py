"""``python -m grpo_from_scratch`` is the ``grpo`` command."""

from grpo_from_scratch.cli import main

if __name__ == "__main__":
    main()
