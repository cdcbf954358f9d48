"""What is known of a model without its bytes: configuration, blocks, shards, and how long its steps take."""
