"""A child process whose output has a bound, and that is ended if it is late."""

import os
import signal
import subprocess
from contextlib import suppress
from selectors import EVENT_READ, BaseSelector, DefaultSelector
from threading import Timer
from typing import Final

_CHUNK: Final = 1 << 16
_OFTEN: Final = 0.2
"""Seconds after which a timeout is noticed."""


class TooLong(Exception):
    """It printed more than anybody reads."""


def read(child: "subprocess.Popen[bytes]", timeout: float, most: int) -> tuple[str, str]:
    """Return what it printed to each of its pipes, when it has ended; raises TooLong or TimeoutExpired."""
    timer = Timer(timeout, lambda: None)
    timer.daemon = True
    timer.start()
    output, errors = bytearray(), bytearray()
    try:
        with DefaultSelector() as selector:
            for pipe, found in ((child.stdout, output), (child.stderr, errors)):
                if pipe:
                    selector.register(pipe, EVENT_READ, found)
            while selector.get_map():
                _check(child, timer)
                for key, _ in selector.select(_OFTEN):
                    _take(selector, key.fd, key.data, most)
        while child.poll() is None:  # its pipes are closed, and it may still hang
            _check(child, timer)
            with suppress(subprocess.TimeoutExpired):
                child.wait(_OFTEN)
    finally:
        timer.cancel()
    return output.decode(errors="replace"), errors.decode(errors="replace")


def _check(child: "subprocess.Popen[bytes]", timer: Timer) -> None:
    if not timer.is_alive():
        raise subprocess.TimeoutExpired(child.args, timer.interval)


def _take(selector: BaseSelector, pipe: int, found: bytearray, most: int) -> None:
    if chunk := os.read(pipe, _CHUNK):
        found += chunk
    else:
        selector.unregister(pipe)
    if len(found) > most:
        raise TooLong


def kill(child: "subprocess.Popen[bytes]") -> None:
    """End it, and all of its session if it has one of its own."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            if os.getpgid(child.pid) == child.pid:
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()
