"""What is deployed beside the agent."""
