"""Several workers as one instance: rank 0 leads, the others take the same steps."""
