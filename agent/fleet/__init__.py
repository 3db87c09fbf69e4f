"""`kubectl nodeleak`, on an operator's machine: runs commands on many nodes with kubectl."""
