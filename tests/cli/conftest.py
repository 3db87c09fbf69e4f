"""Commands that run in this process change its state."""

import gc
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _restore_process() -> Iterator[None]:
    """Restore the handler of SIGTERM, and garbage collection."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    gc.enable()
