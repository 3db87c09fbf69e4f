"""Cleanup, from decision to removal: session and guards, release, journal, files.

Only `files.py` changes the node. The journal is written beside it, by `journal_store.py`.
"""
