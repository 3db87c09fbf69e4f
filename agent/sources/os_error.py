"""How errors of the operating system are described."""

import errno
import os
from collections.abc import Iterator


def describe_os_error(error: OSError) -> str:
    """Return the operating system's message, with the remedy where permissions are missing."""
    text = error.strerror or str(error)
    if text[1:2].islower():  # AF_UNIX stays as it is
        text = f"{text[0].lower()}{text[1:]}"
    return f"{text}{_remedy(error)}"


def _remedy(error: OSError) -> str:
    if os.geteuid():
        return " (run as root)" if isinstance(error, PermissionError) else ""
    # EPERM has other reasons as well, such as an immutable file.
    return " (as root: likely a missing capability, AppArmor or SELinux)" if error.errno == errno.EACCES else ""


def cannot_read(path: object, error: OSError) -> str:
    """Say which file or directory could not be read, and why."""
    return f"cannot read {path}: {describe_os_error(error)}"


_NOT_CONNECTED = {errno.ENOENT, errno.EACCES, errno.EPERM, errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.ENETUNREACH}


def why_not_connected(error: BaseException) -> str:
    """Return why a client library could not connect; empty where its error is another one.

    Libraries wrap the operating system's error in their own, as a cause, a context or an argument.
    """
    for one in _behind(error, depth=8):
        if isinstance(one, OSError) and one.errno is not None and one.errno < 0:  # only getaddrinfo's are negative
            return f"cannot resolve the host name: {describe_os_error(one)}"
        if isinstance(one, OSError) and one.errno in _NOT_CONNECTED and one.strerror:
            return describe_os_error(one)
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
