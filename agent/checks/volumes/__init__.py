"""Volumes that the node's status has lost."""
