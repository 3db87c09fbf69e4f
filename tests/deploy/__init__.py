"""What is deployed: the image, the manifests, and what watches the agent."""
