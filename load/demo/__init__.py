"""`livescale demo`: the main job, watched, checked and reported."""

from load.demo.command import demo

__all__ = ["demo"]
