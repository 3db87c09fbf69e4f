"""One file of the agent's state directory, replaced whole or not at all.

The agent works without it: a directory that cannot be written is reported through `failed`.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


class StateFile:
    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        """`warn`: called with the reason when a write fails, once for each reason."""
        self.path = path
        self.failed = ""
        """Why the last write failed; empty: it did not."""
        self._warn = warn

    def write(self, content: bytes) -> bool:
        """Return whether it was written."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _replace(self.path, content)
        except OSError as error:
            # Without the name of the temporary file, which is different each time.
            why = f"{self.path.parent}: {error.strerror}"
            if why != self.failed:
                self._warn(why)
            self.failed = why
            return False
        self.failed = ""
        return True


def _replace(path: Path, content: bytes) -> None:
    """Replace the file by a private one. After a power cut, either version is there and complete."""
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
