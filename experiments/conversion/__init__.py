"""Pretrained models with gates: what conversion costs, against every control with the same tokens."""
