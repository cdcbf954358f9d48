"""`livescale bench zigzag`: the order in which a live target and its source run layers."""
