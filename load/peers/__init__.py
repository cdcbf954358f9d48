"""Programs that run other engines in an environment of their own, for `livescale bench engine`."""
