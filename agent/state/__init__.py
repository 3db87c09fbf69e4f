"""What the agent keeps on disk. While the process lives, an unwritable directory loses nothing."""
