"""Quantized matrices: how they are packed in blocks, and how checkpoints store them."""
