"""`livescale profile`: measure an engine's latencies for the modelled engine."""
