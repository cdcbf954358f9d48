"""`livescale bench transfer`: how fast parameters move, beside a plain copy."""
