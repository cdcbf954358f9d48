"""Which rows of which requests run in the next step, and which blocks they have."""
