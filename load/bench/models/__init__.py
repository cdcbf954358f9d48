"""`livescale bench models`: architectures beside transformers, and experts beside a dense model."""
