"""Pure plans: which process sends which blocks to which."""
