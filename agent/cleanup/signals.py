"""Holds a signal back until the current release is done and reported."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_held: list[int] = []
"""The signals that wait. Their handlers belong to the process, and so does this list."""


def interrupted() -> bool:
    """Return whether a signal waits: nothing new must begin."""
    return bool(_held)


@contextmanager
def held_signals(*, deliver: bool = False) -> Iterator[None]:
    """Hold SIGTERM and SIGINT back. `deliver`: afterwards, the first one ends the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {
        number: signal.signal(number, lambda number, _: _held.append(number)) for number in numbers
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        first = _held[:1] if deliver else []
        _held.clear()
        for waiting in first:
            signal.raise_signal(waiting)
