"""Which reading to believe, and whose a directory of host-local is."""
