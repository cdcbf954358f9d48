"""What the papers say that this system follows, each claim checked here: `livescale claims`."""
