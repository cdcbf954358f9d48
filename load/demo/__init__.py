"""`livescale demo`: the main job, watched, checked and reported."""
