"""TELLING. Each file is one drawing of a report; none of them judges, and none changes the node."""
