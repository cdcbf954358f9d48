"""Execution pipelines: several instances that are still loading run a model together."""
