"""The KV cache: blocks, the radix tree of prefixes, and the tiers that old prefixes move to."""
