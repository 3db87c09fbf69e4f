"""Reading: each source against the real thing, or against a stand-in that says exactly given bytes."""
