"""One file of the agent's state directory, replaced whole or not at all.

The agent works without it: a directory that cannot be written is reported through `failed`.
"""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from glob import escape
from pathlib import Path
from typing import Final

from agent.sources.deadline import Within, ask
from agent.sources.source_error import SourceError

_TEMPORARY: Final = ".nodeleak"


class StateFile:
    def __init__(self, path: Path, warn: Callable[[str], None], within: Within = ask) -> None:
        """`warn`: called with the reason when a write fails, once for each reason. `within`: bounds each write."""
        self.path, self.within = path, within
        self.failed = ""
        """Why the last write failed; empty: it did not."""
        self._warn = warn

    def write(self, content: bytes) -> bool:
        """Return whether it was written."""
        try:
            self.within(partial(_replace, self.path, content))
        except SourceError as error:
            return self._fail(str(error))
        except OSError as error:
            # Without the name of the temporary file, which is different each time.
            return self._fail(f"{self.path.parent}: {error.strerror}")
        self.failed = ""
        return True

    def _fail(self, why: str) -> bool:
        if why != self.failed:
            self._warn(why)
        self.failed = why
        return False


def _replace(path: Path, content: bytes) -> None:
    """Replace the file by a private one. After a power cut, either version is there and complete."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in path.parent.glob(f".{escape(path.name)}.*{_TEMPORARY}"):  # by a process that was killed
        left.unlink(missing_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_TEMPORARY)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
