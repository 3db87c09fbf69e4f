"""The torture of hack/torture, tortured: it must bite, and raise no false alarm. Without docker, without host-local."""
