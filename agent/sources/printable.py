"""Names that others chose, as any output can carry them."""


def escape(name: str) -> str:
    """Return the name itself where it can be printed, and its escapes where it cannot."""
    return name.encode(errors="backslashreplace").decode() if name.isprintable() else ascii(name)[1:-1]
