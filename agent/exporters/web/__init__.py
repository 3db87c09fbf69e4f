"""The HTTP server of the agent, and its page."""
