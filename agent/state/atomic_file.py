"""One file of the agent's state directory, replaced whole or not at all.

Without it the agent knows less, and goes on: a directory that cannot be written is told through `failed`.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


class StateFile:
    """The file of one name."""

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """`warn`: told why it could not be written, when that changes."""
        self.path = path
        self.failed = ""
        """Why it could not be written the last time; empty where it was."""
        self._warn = warn

    def write(self, content: bytes) -> bool:
        """Tell whether it was written."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(self.path, content)
        except OSError as error:
            # Without the file's name, of which a part is new each time.
            why = f"{self.path.parent}: {error.strerror}"
            if why != self.failed:
                self._warn(why)
            self.failed = why
            return False
        self.failed = ""
        return True


def _replace(path: Path, content: bytes) -> None:
    """Put the whole of it in its place, readable for us alone; after a power cut the one before is as good."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
