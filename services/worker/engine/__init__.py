"""Runs layers over rows of many requests, by compiled kernels or by torch."""
