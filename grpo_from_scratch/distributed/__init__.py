"""How work is spread over processes; knows nothing of GRPO."""
