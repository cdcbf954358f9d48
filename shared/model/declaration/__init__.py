"""What declarations of architectures are made of: a configuration as it lies on disk, rotations, tensors, layers."""
