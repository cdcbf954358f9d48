"""Benchmarks: each measures ratios side by side in one run, and prints its bars and JSON."""
