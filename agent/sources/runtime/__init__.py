"""Read from container runtimes."""
