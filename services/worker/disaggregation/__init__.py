"""Hands requests from instances that prefill to instances that decode, KV by layer."""
