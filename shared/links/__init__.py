"""Links that carry bulk bytes between processes, over UCX or sockets, shaped and measured where that is asked for."""
