"""`livescale demo`: the main job, watched, checked and reported."""

from livescale.load.demo.command import demo

__all__ = ["demo"]
