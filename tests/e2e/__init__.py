"""What is true of a real node: kubelet with kubenet, docker, host-local, API server (hack/cluster). Needs root."""
