"""Watches load, and decides when a model gets or gives back instances."""
