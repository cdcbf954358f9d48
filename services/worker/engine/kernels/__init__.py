"""The C kernels, and which variant of them this CPU runs."""
