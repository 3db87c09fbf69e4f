"""Cleanup, in the order of a release: `run` asks the `guards`, and for what passes `recheck`, `journal`, `unlink`."""
