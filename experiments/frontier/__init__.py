"""Accuracy against cost: every method at every budget, on every dataset, and what gates add."""
