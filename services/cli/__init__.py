"""The `livescale` command for operators: start, watch, scale, explain."""
