"""What is to be told to the API server, waiting for its turn, and the thread that delivers it.

Best effort: a letter that cannot be delivered is counted, and gone. Rounds never wait for it.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from queue import Full, Queue
from threading import Event
from typing import Any, Final, Protocol, TypeAlias

from agent.kube_events.writer import Throttled, Writer
from agent.sources.error import SourceError
from agent.sources.kube.client import ApiError

_MOST_WAITING: Final = 64
_PATIENCE: Final = 60.0
"""Seconds for which a server may put us off."""
_SERVER_ERROR: Final = 500


class What(StrEnum):
    EVENT = "event"
    CONDITION = "condition"


class Failure(StrEnum):
    """Why something was not told: the closed list."""

    RATE_LIMITED = "rate_limited"
    """We say no more than so much at a time."""
    QUEUE_FULL = "queue_full"
    """Too much waits already: the server is slow."""
    REFUSED = "refused"
    """The server said no."""
    THROTTLED = "throttled"
    """The server is busy, and was so again when it was asked again."""
    UNREACHABLE = "unreachable"
    """No answer, or that of a server that fails."""


class Server(Protocol):
    def create(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]: ...
    def patch(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Message:
    what: What
    reason: str
    """By which it is counted."""
    send: Callable[[Server], None]
    """Raises Unavailable."""


Post: TypeAlias = Callable[[Message], None]


class DeliveryCounters(Protocol):
    """Whoever counts what became of the letters."""

    def sent(self, message: Message) -> None: ...
    def missed(self, what: What, failure: Failure, times: int = 1) -> None: ...


class DeliveryQueue:
    """`post` and `end` may be called from any thread, and return at once; `run` belongs to one."""

    def __init__(
        self, connect: Callable[[], Writer], tally: DeliveryCounters, warn: Callable[[str, str, str], None]
    ) -> None:
        """`warn`: told of each kind of failure once; all are counted."""
        self._connect, self._tally, self._warn = connect, tally, warn
        self._waiting: Queue[Message | None] = Queue(_MOST_WAITING)
        self._ended = Event()
        self._warned: set[tuple[What, Failure]] = set()
        self._writer: Writer | None = None

    def post(self, message: Message) -> None:
        try:
            self._waiting.put_nowait(message)
        except Full:
            self._failed(message, Failure.QUEUE_FULL, f"{_MOST_WAITING} wait already")

    def run(self) -> None:
        """Deliver what comes, until the end. What waits then is lost."""
        while (message := self._waiting.get()) is not None and not self._ended.is_set():
            self._deliver(message)
        self._hang_up()

    def end(self) -> None:
        self._ended.set()
        # Wakes who waits for a letter; where there are too many, nobody does.
        with suppress(Full):
            self._waiting.put_nowait(None)

    def _deliver(self, message: Message) -> None:
        try:
            try:
                message.send(self._connected())
            except Throttled as busy:
                self._ended.wait(min(busy.seconds, _PATIENCE))
                message.send(self._connected())
        except SourceError as error:
            self._failed(message, _failure(error), str(error))
            # Credentials may have been rotated, and the server replaced: connect anew.
            self._hang_up()
        else:
            self._tally.sent(message)

    def _connected(self) -> Writer:
        if self._writer is None:
            self._writer = self._connect()
        return self._writer

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _failed(self, message: Message, failure: Failure, why: str) -> None:
        self._tally.missed(message.what, failure)
        if (message.what, failure) not in self._warned:
            self._warned.add((message.what, failure))
            self._warn(message.what.value, failure.value, why)


def _failure(error: SourceError) -> Failure:
    match error:
        case Throttled():
            return Failure.THROTTLED
        case ApiError() if error.status < _SERVER_ERROR:
            return Failure.REFUSED
        case _:
            return Failure.UNREACHABLE
