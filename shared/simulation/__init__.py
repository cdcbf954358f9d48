"""The bus and time for simulations: in one process, hours in milliseconds, the same in every run."""
