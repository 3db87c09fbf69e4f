"""What a real containerd needs and this machine does not have."""


class CannotRun(Exception):
    """The text names what is needed."""
