"""Masks of the tokens that a grammar permits, computed in a process of their own."""
