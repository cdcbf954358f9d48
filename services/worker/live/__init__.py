"""Live scaling: a target runs the layers that it has, a source pulls requests and runs the rest."""
