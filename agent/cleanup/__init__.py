"""ACTING, in the order in which an address is given back: guards, steps, journal, actuator.

Only `actuator.py` changes the node, and only `book.py` writes anywhere else.
"""
