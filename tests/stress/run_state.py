"""The shared state of a run: stop signals, failures, and the threads that obey them."""

import traceback
from collections.abc import Callable
from threading import Event, Lock, Thread


class RunState:
    """Stop signals that every thread checks, and the failures that caused them."""

    def __init__(self) -> None:
        self.stopping = Event()
        """No new sandboxes; existing ones complete their lifecycle."""
        self.over = Event()
        """Every thread stops after its current step."""
        self.aborted = Event()
        """The run failed: running commands are terminated as well."""
        self._lock = Lock()
        self._failures: list[str] = []

    def fail(self, why: str) -> None:
        """End the run at once."""
        with self._lock:
            self._failures.append(why)
        self.abort()

    def abort(self) -> None:
        self.aborted.set()
        self.end()

    def end(self) -> None:
        self.stopping.set()
        self.over.set()

    @property
    def failures(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._failures)


class Threads:
    """Threads whose exceptions fail the run."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._threads: list[Thread] = []

    def start(self, work: Callable[[], None]) -> Thread:
        thread = Thread(target=self._guarded, args=(work,), daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 (any exception of a thread fails the run)
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._state.fail(f"{type(error).__name__} at {where.name}:{where.lineno}: {error}")
