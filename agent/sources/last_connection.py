"""The connection that urllib3 uses, so that another thread can end an answer whose bytes drip.

A timeout of urllib3 bounds each read, and the headers have many. Until they have arrived, only the pool knows the
connection.
"""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Timer
from typing import Any

from agent.sources.deadline import start
from agent.sources.source_error import SourceError


class LastConnection:
    """Of one client, which makes one request after the other."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._body: Any = None
        self.ended = False
        """Whether the answer was ended."""
        self._question, self._lock = 0, Lock()

    def begin(self) -> int:
        """A question begins; return its number."""
        with self._lock:
            self._connection, self._body, self.ended = None, None, False
            self._question += 1
            return self._question

    def watch(self, pool: Any) -> None:
        """Learn of the connections that a pool hands out. May be called again for the same pool."""
        vars(pool).setdefault("_get_conn", _then(pool._get_conn, self._taken))  # noqa: SLF001 (there is no other way)

    def reads(self, body: Any) -> None:
        """The headers have arrived. After `Connection: close`, the connection has left its socket to the body."""
        self._body = body

    def end(self, question: int = 0) -> None:
        """End the answer that another thread waits for or reads: its connection is shut down, and the read fails.

        `question`: only if it is this one still, because the next one may have the same connection.
        """
        with self._lock:
            if question not in {0, self._question}:
                return
            self.ended = True
            # It may have ended by now.
            with suppress(AttributeError, OSError):
                self._connection.sock.shutdown(socket.SHUT_RDWR)
            with suppress(AttributeError, OSError, RuntimeError, ValueError):
                self._body.shutdown()

    def close(self) -> None:
        """Close the connection now: its pool would only when the garbage collector finds the pool."""
        with suppress(AttributeError, OSError):
            self._connection.close()
        self.begin()

    @contextmanager
    def bounded(self, seconds: float, who: str) -> Iterator[None]:
        """End the answer that the block waits for after so many seconds; then it raises SourceError."""
        timer = Timer(seconds, self.end, [self.begin()])
        timer.daemon = True
        start(timer)
        late = f"{who}: no complete response within {seconds:g} s"
        try:
            yield
        except SourceError as error:
            if self._over():
                raise SourceError(late) from error
            raise
        else:
            # Headers, and a body without a length, end with their connection: what was cut off looks complete.
            if self._over():
                raise SourceError(late)
        finally:
            timer.cancel()

    def _over(self) -> bool:
        """Return whether the answer was ended; from now on it is not."""
        with self._lock:
            self._question += 1
            return self.ended

    def _taken(self, connection: Any) -> None:
        self._connection = connection


def _then(take: Callable[..., Any], told: Callable[[Any], None]) -> Callable[..., Any]:
    def taken(*given: Any, **options: Any) -> Any:
        connection = take(*given, **options)
        told(connection)
        return connection

    return taken
