"""`livescale bench live`: what it gains to answer while parameters still arrive."""
