"""Reads calls of tools and reasoning out of what a model writes, while it is written."""
