"""All services in one process under virtual time, with modelled engines, links and disks."""
