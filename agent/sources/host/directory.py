"""Lists a directory that the agent does not own. Read-only."""

import os
from itertools import islice
from typing import Final

from agent.sources.source_error import SourceError

MAX_ENTRIES: Final = 65536
"""A node has some hundred pods, and a file or two for each."""


def names_in(directory: int, where: object) -> list[str]:
    """Return the names of all entries; raises OSError, and SourceError if there are too many.

    `directory`: its handle. `where`: its path, for the error.
    """
    with os.scandir(directory) as entries:
        names = [one.name for one in islice(entries, MAX_ENTRIES + 1)]
    if len(names) > MAX_ENTRIES:
        raise SourceError(f"{where} has more than {MAX_ENTRIES} entries and was not read: find out what fills it")
    return names
