"""Lists a directory that the agent does not own. Read-only."""

import os
from itertools import islice
from typing import Final

from agent.model.input_limit import InputLimit
from agent.sources.source_error import SourceError

MAX_ENTRIES: Final[InputLimit] = 65536
"""A node has some hundred pods, and a file or two for each."""
MAX_TOTAL_BYTES: Final[InputLimit] = 128 * 1024 * 1024
"""Bytes of all its files: the most entries of 2 KiB each. libcni writes 1 or 2."""
LONGEST_TEXT: Final[InputLimit] = 512
"""Characters of what is kept of a file: a name of Kubernetes has 253, and so many files may be kept."""


def names_in(directory: int, where: object) -> list[str]:
    """Return the names of all entries; raises OSError, and SourceError if there are too many.

    `directory`: its handle. `where`: its path, for the error.
    """
    with os.scandir(directory) as entries:
        names = [one.name for one in islice(entries, MAX_ENTRIES + 1)]
    if len(names) > MAX_ENTRIES:
        raise SourceError(f"{where} has more than {MAX_ENTRIES} entries and was not read: find out what fills it")
    return names


def check_total(size: int, where: object) -> None:
    """Raise SourceError if the files have too many bytes together."""
    if size > MAX_TOTAL_BYTES:
        raise SourceError(
            f"{where} has files of more than {MAX_TOTAL_BYTES >> 20} MiB together: find out what fills it"
        )
