"""Traces, load, the simulator, benchmarks and reports: what tries the services out."""
