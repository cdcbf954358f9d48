"""The cluster that processes run in, and what its links carry."""
