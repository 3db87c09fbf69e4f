"""What happened to the device plugins of this node, and the state of each resource. Pure."""
