"""Device plugins of the node: their history, the state of each resource, and the pods that were rejected. Pure."""
