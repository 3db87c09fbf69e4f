"""The stress test on a real node of today: pods come and go by its kubelet, and kubelet and runtime are killed."""
