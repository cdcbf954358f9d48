"""Holds one queue per model, and decides which instance serves a request."""
