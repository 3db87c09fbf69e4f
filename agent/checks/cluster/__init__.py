"""What the node and the API server disagree about: volumes, registration, watches."""
