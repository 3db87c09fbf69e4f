"""`kubectl nodeleak`, on an operator's machine: asks the agents of many nodes with kubectl, merges the answers."""
