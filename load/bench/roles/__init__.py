"""`livescale bench roles`: prefill and decode apart, on real workers."""
