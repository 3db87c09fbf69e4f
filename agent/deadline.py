"""A time limit for a complete response.

Libraries limit each read, so a server that sends a byte now and then can keep them waiting forever.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from threading import Lock, Thread
from typing import Any, TypeVar

_T = TypeVar("_T")


class Deadline:
    """Runs one call at a time, each in its own thread. Thread-safe."""

    late: type[Exception] = TimeoutError
    failed: type[Exception] = RuntimeError

    def __init__(self, what: str, seconds: float) -> None:
        """`what`: the name of the server or program, which begins each message."""
        self._what = what
        self._seconds = seconds
        self._last: Future[Any] | None = None
        self._lock = Lock()

    def __call__(self, call: Callable[[], _T]) -> _T:
        """Return the result of the call; raises `late`, `failed`, and what the call raises."""
        with self._lock:
            if self._last and not self._last.done():
                raise self.late(f"{self._what}: still waiting for an earlier response")
            result = in_thread(self._what, call, self.failed)
            self._last = result
            wait([result], self._seconds)
            if result.done():
                self._last = None  # an exception has a traceback, which would keep the call
        if not result.done():
            raise self.late(f"{self._what}: no complete response within {self._seconds:g} s")
        return result.result()


def in_thread(
    what: str, call: Callable[[], _T], failed: type[Exception] = RuntimeError
) -> Future[_T]:
    """Run a call in a new thread named `what`, which does not keep the process alive.

    Raises `failed` if no thread can be started.
    """
    result = Future[_T]()
    thread = Thread(target=_run, args=(call, result), name=what, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        reason = "no memory is left, or no process (pids.max)"
        raise failed(f"cannot start a thread ({error}): {reason}") from error
    return result


def _run(call: Callable[[], _T], result: "Future[_T]") -> None:
    try:
        result.set_result(call())
    except BaseException as error:  # noqa: BLE001 (it is raised in the calling thread)
        result.set_exception(error)
    finally:
        del call, result  # a failure has a traceback with this frame, which would keep itself
