"""`livescale bench simulate`: the cost of a simulation as it grows."""
