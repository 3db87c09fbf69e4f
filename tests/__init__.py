"""What is true of a node, and what nodeleak says of it."""
