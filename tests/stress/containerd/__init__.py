"""The stress test on real containerd: sandboxes are made by CRI, and containerd and its CNI plugins are killed."""
