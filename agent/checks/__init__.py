"""Pure checks: a snapshot in, a report out. `engine` classifies, confirms and detects."""
