"""Cleanup, in the order of a release: `run` asks the `guards`, and for what passes `recheck`, `journal` and `unlink`.

Only `unlink.py` changes files of host-local and libcni.
"""
