"""Everything that is read. Nothing in this package changes anything."""
