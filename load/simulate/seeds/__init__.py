"""Small random systems with random faults under virtual time, each from a seed, and what must hold of every one."""
