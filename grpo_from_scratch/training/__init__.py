"""The loop: supervised fine-tuning and reinforcement learning."""
