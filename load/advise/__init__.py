"""`livescale advise`: the smallest pool that holds its SLOs under a trace, by simulations."""
