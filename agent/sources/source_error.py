"""The errors of sources, and how errors of the operating system are described.

Pure code may handle them.
"""

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from agent.model.remedy import Remedy

_NOT_CONNECTED: Final = frozenset(
    {
        errno.ENOENT,
        errno.EACCES,
        errno.EPERM,
        errno.ECONNREFUSED,
        errno.EHOSTUNREACH,
        errno.ENETUNREACH,
    }
)
MALFORMED: Final = (
    AttributeError,
    KeyError,
    OverflowError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading a tree of any shape can raise, where a certain one is expected."""


class SourceError(Exception):
    """A source could not be read. The text is the reason; the library's error is its cause.

    `remedy`: what to do, if the text says so too.
    """

    def __init__(self, text: object, remedy: Remedy | None = None) -> None:
        super().__init__(text)
        self.remedy = remedy


class NotFound(SourceError):
    """What should be read does not exist."""


def none_exists(paths: Iterable[Path], remedy: Remedy) -> NotFound:
    """Return the error of paths of which one should exist."""
    return NotFound(f"none of these exists: {', '.join(map(str, paths))} ({remedy})", remedy)


def describe_os_error(error: OSError) -> str:
    """Return the operating system's message, with the remedy if permissions are missing."""
    text = error.strerror or str(error)
    if text[1:2].islower():  # AF_UNIX stays as it is
        text = f"{text[0].lower()}{text[1:]}"
    remedy = os_remedy(error)
    return f"{text} ({remedy})" if remedy else text


def os_remedy(error: OSError) -> Remedy | None:
    """Return what to do about missing permissions; None for any other error."""
    if os.geteuid():
        return Remedy("run as root") if isinstance(error, PermissionError) else None
    if error.errno != errno.EACCES:  # EPERM has other causes too, such as an immutable file
        return None
    return Remedy("as root: likely a missing capability, AppArmor or SELinux")


def cannot_read(path: object, error: OSError) -> str:
    """Return the message of a path that cannot be read."""
    return f"cannot read {path}: {describe_os_error(error)}"


def read_error(path: object, error: OSError) -> SourceError:
    """Return the SourceError of a path that cannot be read, with the remedy if there is one."""
    return SourceError(cannot_read(path, error), os_remedy(error))


def connection_failure(error: BaseException) -> str | None:
    """Return why a client library could not connect; None if it failed at something else."""
    inner: BaseException | None = error
    while inner:  # libraries raise their own errors from the operating system's
        if isinstance(inner, OSError) and inner.errno is not None:
            if inner.errno < 0:  # only getaddrinfo has negative numbers
                return f"cannot resolve the host name: {describe_os_error(inner)}"
            if inner.errno in _NOT_CONNECTED and inner.strerror:
                return describe_os_error(inner)
        inner = inner.__cause__ or inner.__context__
    return None
