"""One file per drawing of a report."""
