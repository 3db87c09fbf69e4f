"""What thousands of agents cost a real API server, beside what the kubelets of the same nodes cost it."""
