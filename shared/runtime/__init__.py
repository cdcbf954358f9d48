"""What processes run on: clock, event loop, settings, and files that people write."""
