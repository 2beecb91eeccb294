"""What only the notebooks use."""
