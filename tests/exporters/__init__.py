"""One file per output of a report."""
