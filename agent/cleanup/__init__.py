"""ACTING, in the order in which an address is given back: guards, steps, journal, actuator.

Only `node_files.py` changes the node. What is written beside it is the journal, by `journal_store.py`.
"""
