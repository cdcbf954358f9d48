"""Starts the processes of `livescale up`, and restarts those that die or hang."""
