"""The image, the manifests, the alerts and the dashboard."""
