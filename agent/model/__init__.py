"""Nouns. Frozen, comparable, without I/O: the words the rest of the agent speaks in."""
