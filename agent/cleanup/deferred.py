"""An ending that is asked for while something is being written down and removed waits until that is done."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ENDINGS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def deferred() -> Iterator[None]:
    """Hold back SIGTERM and SIGINT, and let them have their effect afterwards. Of use in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked: list[int] = []
    before = {one: signal.signal(one, lambda number, _frame: asked.append(number)) for one in ENDINGS}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)
        for number in asked[:1]:
            signal.raise_signal(number)
