"""One machine's cache of parameters, and its checkpoints on disk."""
