"""What the agent keeps on disk. An unwritable directory loses nothing while the process lives."""
