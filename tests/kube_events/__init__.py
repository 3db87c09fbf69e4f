"""Kubernetes Events and the node's condition."""
