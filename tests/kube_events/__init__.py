"""What the API server is told."""
