"""Reports as text, for people at a terminal."""
