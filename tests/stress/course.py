"""How far the torture is, and what went wrong with it; and the threads that live by it."""

import traceback
from collections.abc import Callable
from threading import Event, Lock, Thread


class Course:
    """Two moments that every thread watches for, and why the second came early."""

    def __init__(self) -> None:
        self.winding_down = Event()
        """No sandbox is begun any more; what was begun is brought to its end."""
        self.over = Event()
        """Everybody stops when what is under way has ended."""
        self.aborted = Event()
        """And nobody waits for that."""
        self._lock = Lock()
        self._failures: list[str] = []

    def fail(self, why: str) -> None:
        """End the torture at once."""
        with self._lock:
            self._failures.append(why)
        self.abort()

    def abort(self) -> None:
        self.aborted.set()
        self.end()

    def end(self) -> None:
        self.winding_down.set()
        self.over.set()

    @property
    def failures(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._failures)


class Crew:
    """Threads whose failure is the torture's."""

    def __init__(self, history: Course) -> None:
        self._course = history
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
        except Exception as error:  # noqa: BLE001 (a thread's last words, whatever they are)
            where = traceback.extract_tb(error.__traceback__)[-1]
            self._course.fail(f"{type(error).__name__} at {where.name}:{where.lineno}: {error}")
