"""Device plugins of the node: their history, resources, and the pods that it rejected. Pure."""
