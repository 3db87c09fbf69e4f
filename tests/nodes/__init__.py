"""Recorded nodes, each with its expected diagnosis: later versions must still read these, so none is renewed."""
