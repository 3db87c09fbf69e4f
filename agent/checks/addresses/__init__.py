"""Addresses that host-local reserved: what each reservation is, and the detectors that judge them."""
