"""`livescale bench engine`: the speed of the engine beside its peers and the machine's limits."""
