"""One package a process, and the command line."""
