"""Releases and restores addresses: guards, probe, recheck, unlink, journal, restore, run."""
