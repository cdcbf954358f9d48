"""`livescale simulate`: a scenario file, its run in virtual time, and what came of it."""
