"""Which build this is, as far as it knows."""

from importlib.metadata import version
from importlib.resources import files


def built() -> str:
    """Return the version and the commit; an image has its commit in a file beside the code, a checkout has none."""
    return f"nodeleak {version('nodeleak')}, commit {_commit() or 'not known: only an image knows'}"


def _commit() -> str:
    try:
        return files("agent").joinpath("commit").read_text().strip()
    except FileNotFoundError:
        return ""
