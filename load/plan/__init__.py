"""`livescale plan`: a plan of transfers for a topology, drawn and timed without a system."""
