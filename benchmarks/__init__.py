"""What a GRPO step costs here, side by side with others. README.md has the commands and the results."""
