"""Read from the API server."""
