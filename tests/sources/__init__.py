"""Each source is read from the real service, or from a fake that sends exactly the given bytes."""
