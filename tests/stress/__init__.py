"""Stress test: create, delete, kill and leak sandboxes around one host-local store while cleaners release from it.

A cleaner is only a command to this test. `checker.py` decides from what every thread did and saw whether an address was
released wrongly. What is stressed is docker and host-local (`docker.py`), or a whole node of today with its kubelet
(`whole_node.py`).
"""
