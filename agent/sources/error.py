"""The error of every source."""

import errno
from collections.abc import Iterator


class SourceError(Exception):
    """A source could not be read; the text says why, and the library's error is its cause."""


_NOT_CONNECTED = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH}


def why_not_connected(error: BaseException) -> str:
    """Return why a client library could not connect; empty where its error is another one.

    Libraries wrap the operating system's error in their own, as a cause, a context or an argument.
    """
    for one in _behind(error, depth=8):
        if isinstance(one, OSError) and one.errno in _NOT_CONNECTED and one.strerror:
            hint = " (run as root)" if isinstance(one, PermissionError) else ""
            return f"{one.strerror[:1].lower()}{one.strerror[1:]}{hint}"
    return ""


def _behind(error: BaseException, depth: int) -> Iterator[BaseException]:
    yield error
    if depth == 0:
        return
    inner = (error.__cause__, error.__context__, getattr(error, "reason", None), *error.args)
    for one in inner:
        for nested in one if isinstance(one, tuple) else (one,):
            if isinstance(nested, BaseException):
                yield from _behind(nested, depth - 1)
