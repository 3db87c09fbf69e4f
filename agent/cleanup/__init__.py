"""Cleanup, from decision to removal: session and guards, release, journal, files.

Only `files.py` changes files of host-local and libcni. The journal is written beside it, by `journal_store.py`.
"""
