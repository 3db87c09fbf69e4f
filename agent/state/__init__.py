"""What the agent remembers on disk. A directory that cannot be written loses nothing while the process lives."""
