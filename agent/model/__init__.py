"""Frozen values without I/O: readings, snapshot, assessment, findings, report."""
