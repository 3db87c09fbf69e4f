"""Whether the Node object exists and is complete."""
