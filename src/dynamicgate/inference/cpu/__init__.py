"""Compiled plans for CPUs: chains of sparse and gated layers in C++."""
