"""Read from the node itself: files, /proc, sockets."""
