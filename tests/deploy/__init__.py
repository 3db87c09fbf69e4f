"""What is deployed: the image's definition and the manifests."""
