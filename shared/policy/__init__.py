"""What decisions are made of: pure tools without clock, chance or I/O."""
