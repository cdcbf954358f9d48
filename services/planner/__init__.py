"""Makes a plan of each decision to scale, and carries it through failures."""
