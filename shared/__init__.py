"""What services have in common. Nothing here imports a service."""
