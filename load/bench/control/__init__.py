"""`livescale bench control`: what gateway, router and bus add to a request."""
