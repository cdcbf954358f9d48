"""`livescale chaos`: a system under load while its processes are killed and frozen."""
