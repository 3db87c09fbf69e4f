"""Real containerd of several versions, each in namespaces of its own, driven by CRI."""
