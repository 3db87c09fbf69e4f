"""Kubernetes Events and a condition of the node, written best effort: nothing waits for the API server.

`messages` and `condition` decide what is due after a sync; `delivery` sends it in a thread of its own,
through `writer`, the only module that writes to the API server.
"""
