"""The agent's HTTP server and page."""
