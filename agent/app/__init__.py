"""What a `Config` becomes: sources, a cleaner, exporters, and the daemon."""

from importlib.resources import files


def commit() -> str:
    """Return the commit; empty if it is not known.

    The image build writes it to a file beside the code; a checkout has no such file.
    """
    try:
        return files("agent").joinpath("commit").read_text().strip()
    except FileNotFoundError:
        return ""
