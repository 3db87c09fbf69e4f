"""Kubernetes Events and a condition of the node: decided after a sync, and sent best effort by a thread of its own."""
