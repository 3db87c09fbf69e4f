"""Addresses that host-local reserved: what each reservation is, and the five detectors that judge them."""
