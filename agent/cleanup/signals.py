"""A signal that arrives while addresses are released waits until the current release is done and reported."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TERMINATING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_pending: list[int] = []
"""Signal handlers belong to the process, and so does this list."""


def interrupted() -> bool:
    """Tell whether a signal is held back: nothing new must begin."""
    return bool(_pending)


def forget() -> None:
    """Drop the signals held back. The caller ends by itself, with an exit code that says so."""
    _pending.clear()


@contextmanager
def deferred() -> Iterator[None]:
    """Hold back terminating signals and deliver the first one afterwards. Has no effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in TERMINATING if signal.getsignal(one) is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, lambda number, _frame: _pending.append(number))
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        first = _pending[:1]
        _pending.clear()
        for number in first:
            signal.raise_signal(number)
