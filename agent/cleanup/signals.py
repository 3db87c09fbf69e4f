"""An ending that is asked for while addresses are released waits until the one at hand is done, and all of it told."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ENDINGS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_asked: list[int] = []
"""The signals held back. They are the process's own, and so is this."""


def ending() -> bool:
    """Tell whether an ending was asked for and is held back: nothing new is to be begun."""
    return bool(_asked)


@contextmanager
def deferred() -> Iterator[None]:
    """Hold back what would end us, and let it have its effect afterwards. Of use in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {one: signal.getsignal(one) for one in ENDINGS if signal.getsignal(one) is not signal.SIG_IGN}
    for one in before:
        signal.signal(one, lambda number, _frame: _asked.append(number))
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        asked = _asked[:1]
        _asked.clear()
        for number in asked:
            signal.raise_signal(number)
