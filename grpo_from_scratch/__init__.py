"""Group Relative Policy Optimization from scratch: the course's package."""

__version__ = "0.1.0"
