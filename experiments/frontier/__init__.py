"""Accuracy against cost: every method at every budget, on every data set, and what the gates add."""
