"""Stress test: create, delete, kill and leak sandboxes around one host-local store while cleaners release from it.

A cleaner is only a command to this test. docker and host-local are real; the libcni cache is written by this package.
"""
