"""Memory that parameters lie in: of the host or of a GPU, pinned, or shared with other processes."""
