"""Recorded nodes, and beside each the diagnosis that is expected of it."""
