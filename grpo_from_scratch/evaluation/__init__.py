"""What came out: text metrics, learning curves, the PPO-vs-GRPO table."""
