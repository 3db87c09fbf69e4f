"""Messages that wait for delivery to the API server, and the thread that delivers them.

Best effort: a message that cannot be delivered is counted and dropped. A sync never waits for it.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from queue import Empty, Full, Queue
from threading import Event
from typing import Any, Final, Protocol, TypeAlias

from agent.kube_events.writer import Throttled, Writer
from agent.sources.kube.client import ApiError
from agent.sources.source_error import SourceError

_LONGEST_QUEUE: Final = 64
_LONGEST_WAIT: Final = 60.0
"""Seconds, whatever the server's Retry-After says."""
_IDLE: Final = 10.0
"""Seconds after the last message until the connection is closed: the next one may come in minutes, or never."""
_SERVER_ERROR: Final = 500


class Kind(StrEnum):
    EVENT = "event"
    CONDITION = "condition"


class Failure(StrEnum):
    """Why a message was not delivered: the closed list."""

    RATE_LIMITED = "rate_limited"
    """The agent's own limit."""
    QUEUE_FULL = "queue_full"
    """Too many messages wait already: the server is slow."""
    REFUSED = "refused"
    """The server returned a client error, such as 403."""
    THROTTLED = "throttled"
    """The server returned 429, also to the second attempt."""
    UNREACHABLE = "unreachable"
    """No answer, or a server error."""


class Server(Protocol):
    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]: ...
    def patch(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Message:
    kind: Kind
    reason: str
    """The label of its counter."""
    send: Callable[[Server], None]
    """Raises SourceError."""


Put: TypeAlias = Callable[[Message], None]


class DeliveryCounters(Protocol):
    def sent(self, message: Message) -> None: ...
    def failed(self, kind: Kind, failure: Failure, times: int = 1) -> None: ...


class DeliveryQueue:
    """`put` and `stop` return at once and may be called from any thread; `run` belongs to one."""

    def __init__(
        self, connect: Callable[[], Writer], counters: DeliveryCounters, warn: Callable[[str, str, str], None]
    ) -> None:
        """`warn`: called once for each kind of failure; all are counted."""
        self._connect, self._counters, self._warn = connect, counters, warn
        self._waiting: Queue[Message | None] = Queue(_LONGEST_QUEUE)
        self._stopped = Event()
        self._warned: set[tuple[Kind, Failure]] = set()
        self._writer: Writer | None = None

    def put(self, message: Message) -> None:
        try:
            self._waiting.put_nowait(message)
        except Full:
            self._failed(message, Failure.QUEUE_FULL, f"{_LONGEST_QUEUE} messages are waiting")

    def run(self) -> None:
        """Deliver messages until `stop`; those that wait then are lost."""
        while (message := self._next()) is not None and not self._stopped.is_set():
            self._deliver(message)
        self._disconnect()

    def stop(self) -> None:
        self._stopped.set()
        # Wakes a thread that waits for a message; with a full queue none does.
        with suppress(Full):
            self._waiting.put_nowait(None)

    def _next(self) -> Message | None:
        try:
            return self._waiting.get(timeout=_IDLE if self._writer else None)
        except Empty:
            self._disconnect()
            return self._waiting.get()

    def _deliver(self, message: Message) -> None:
        try:
            try:
                message.send(self._connected())
            except Throttled as throttled:
                self._stopped.wait(min(throttled.seconds, _LONGEST_WAIT))
                message.send(self._connected())
        except SourceError as error:
            self._failed(message, _failure(error), str(error))
            # Credentials may have been rotated, and the server replaced.
            self._disconnect()
        else:
            self._counters.sent(message)

    def _connected(self) -> Writer:
        if self._writer is None:
            self._writer = self._connect()
        return self._writer

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _failed(self, message: Message, failure: Failure, why: str) -> None:
        self._counters.failed(message.kind, failure)
        if (message.kind, failure) not in self._warned:
            self._warned.add((message.kind, failure))
            self._warn(message.kind.value, failure.value, why)


def _failure(error: SourceError) -> Failure:
    match error:
        case Throttled():
            return Failure.THROTTLED
        case ApiError() if error.status < _SERVER_ERROR:
            return Failure.REFUSED
        case _:
            return Failure.UNREACHABLE
