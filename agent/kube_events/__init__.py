"""Kubernetes Events and a condition of the node.

They are decided after a sync, and sent best effort by a thread of their own.
"""
