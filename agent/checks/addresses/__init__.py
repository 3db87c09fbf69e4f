"""Addresses that host-local reserved: the state of each reservation, and detectors."""
