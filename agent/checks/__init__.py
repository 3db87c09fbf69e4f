"""Pure checks: a snapshot in, a report out. `engine` classifies reservations, confirms findings and runs the detectors."""
