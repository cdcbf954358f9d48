"""`livescale bench requests`: what request parameters cost, such as grammars and log-probabilities."""
