"""Knows members and their leases, models, and which process holds which block."""
