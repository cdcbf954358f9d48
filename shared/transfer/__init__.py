"""Moving a model's blocks between processes: one executor for every plan."""
