"""`livescale advise`: the smallest pool that meets its SLOs under a trace, by simulations."""
