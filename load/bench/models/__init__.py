"""`livescale bench models`: kinds of models, each against a peer."""
