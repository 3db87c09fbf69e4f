"""What a Config becomes: sources, a cleaner, exporters, and the daemon with everything that hangs on it."""
