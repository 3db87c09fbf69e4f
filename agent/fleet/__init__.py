"""`kubectl nodeleak`: ask the agents of many nodes through the operator's own kubectl, and merge what they answer.

It runs on an operator's machine. It reads and changes no node itself: the agents do, in their own pods.
"""
