"""The errors of sources, and how errors of the operating system are described. Pure code may handle them."""

import errno
import os
from typing import Final

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


class SourceError(Exception):
    """A source could not be read; the text says why, and the library's error is its cause."""


class NotFound(SourceError):
    """What should be read does not exist."""


def describe_os_error(error: OSError) -> str:
    """Return the operating system's message, with the remedy where permissions are missing."""
    text = error.strerror or str(error)
    if text[1:2].islower():  # AF_UNIX stays as it is
        text = f"{text[0].lower()}{text[1:]}"
    if os.geteuid():
        return f"{text} (run as root)" if isinstance(error, PermissionError) else text
    # EPERM has other reasons as well, such as an immutable file.
    denied = error.errno == errno.EACCES
    return f"{text} (as root: likely a missing capability, AppArmor or SELinux)" if denied else text


def cannot_read(path: object, error: OSError) -> str:
    return f"cannot read {path}: {describe_os_error(error)}"


def why_not_connected(error: BaseException) -> str:
    """Return why a client library could not connect; empty where its error is another."""
    inner: BaseException | None = error
    while inner:  # libraries raise their own errors from the operating system's
        if (
            isinstance(inner, OSError) and inner.errno is not None and inner.errno < 0
        ):  # only getaddrinfo's
            return f"cannot resolve the host name: {describe_os_error(inner)}"
        if isinstance(inner, OSError) and inner.errno in _NOT_CONNECTED and inner.strerror:
            return describe_os_error(inner)
        inner = inner.__cause__ or inner.__context__
    return ""
