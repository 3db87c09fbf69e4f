"""Recorded nodes, each with its expected diagnosis."""
