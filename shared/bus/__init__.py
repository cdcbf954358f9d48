"""The bus that carries messages between processes: what actors ask of it, and how NATS does it."""
