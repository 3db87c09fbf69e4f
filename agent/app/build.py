"""Which build this is."""

from importlib.resources import files


def commit() -> str:
    """Return the commit. The image build writes it to a file beside the code; a checkout has no such file."""
    try:
        return files("agent").joinpath("commit").read_text().strip()
    except FileNotFoundError:
        return ""
