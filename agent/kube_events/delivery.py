"""Messages for the API server, and the thread that delivers them.

It does so best effort: no sync waits for it.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from http import HTTPStatus
from queue import Full, Queue
from threading import Event, Lock
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from agent.sources.kube.errors import ApiError
from agent.sources.kube.retries import Wait, backoff, retrying
from agent.sources.source_error import SourceError

if TYPE_CHECKING:  # the client library is loaded by a daemon that uses the API server
    from agent.kube_events.writer import Writer

REPEAT_AFTER: Final = timedelta(minutes=5)
"""What lasts is sent again: a message, or the object itself, may get lost."""
_CAPACITY: Final = 64
"""Messages that wait to be sent."""


class Kind(StrEnum):
    EVENT = "event"
    CONDITION = "condition"


class Failure(StrEnum):
    """Why a message was not delivered."""

    RATE_LIMITED = "rate_limited"
    QUEUE_FULL = "queue_full"
    REFUSED = "refused"
    """A client error."""
    THROTTLED = "throttled"
    """429 twice."""
    UNREACHABLE = "unreachable"
    """No answer, or a server error."""


class Message(NamedTuple):
    kind: Kind
    reason: str
    """The label of its counter."""
    send: "Callable[[Writer], object]"
    """Raises SourceError."""


class DeliveryCounts(Protocol):
    """Counts what became of messages. Called from any thread."""

    def sent(self, message: Message) -> None: ...
    def failed(self, kind: Kind, failure: Failure, times: int = 1) -> None: ...


class DeliveryQueue:
    """`put` and `stop` do not wait and may be called from any thread; `run` belongs to one."""

    def __init__(
        self,
        writer: "Writer",
        counts: DeliveryCounts,
        warn: Callable[[str, str, str], None],
        recovered: Callable[[str], None],
        wait: Wait | None = None,
    ) -> None:
        """`warn`: called when a kind of failure begins. `recovered`: when its messages arrive.

        `wait`: after failures in a row; a test need not wait.
        """
        self.counts = counts
        self._writer = writer
        self._warn = warn
        self._recovered = recovered
        self._wait = wait or backoff()
        self._waiting: Queue[Message | None] = Queue(_CAPACITY)
        self._stopped = Event()
        self._throttled: Message | None = None
        """The message that the server wants later; it comes next."""
        self._failing: set[tuple[Kind, Failure]] = set()
        self._changing = Lock()

    def put(self, message: Message) -> None:
        """Queue a message; with a full queue it is counted as failed."""
        try:
            self._waiting.put_nowait(message)
        except Full:
            self._failed(message, Failure.QUEUE_FULL, f"{_CAPACITY} messages are waiting")

    def run(self) -> None:
        """Deliver messages until `stop`; those that wait then are lost."""
        while not self._stopped.is_set():
            # What was delivered begins the waits anew.
            retrying(self._stopped, lambda: self._wait)(self._deliver_next)

    def stop(self) -> None:
        """End `run`, whatever it waits for."""
        self._stopped.set()
        # Wakes a thread that waits for a message; with a full queue none does.
        with suppress(Full):
            self._waiting.put_nowait(None)

    def _deliver_next(self) -> None:
        """Deliver one message; raises SourceError after a failure that calls for a wait."""
        again = self._throttled is not None
        if not again and self._waiting.empty():  # the next message may come in minutes, or never
            self._writer.close()
        message = self._throttled or self._waiting.get()
        self._throttled = None
        if message is None or self._stopped.is_set():
            return

        try:
            message.send(self._writer)
        except SourceError as error:
            failure = _failure(error)
            if failure is Failure.THROTTLED and not again:
                self._throttled = message
                raise

            self._failed(message, failure, str(error))
            if not isinstance(error, ApiError) or not error.keeps_connection:
                # Credentials may have been rotated, and the server replaced.
                self._writer.close()
            if failure is not Failure.REFUSED:
                raise
        else:
            self._sent(message)

    def _sent(self, message: Message) -> None:
        self.counts.sent(message)
        with self._changing:
            recovered = {failing for failing in self._failing if failing[0] is message.kind}
            self._failing -= recovered
        if recovered:
            self._recovered(message.kind.value)

    def _failed(self, message: Message, failure: Failure, reason: str) -> None:
        self.counts.failed(message.kind, failure)
        failing = message.kind, failure
        with self._changing:
            is_new = failing not in self._failing
            self._failing.add(failing)
        if is_new:
            self._warn(message.kind.value, failure.value, reason)


def _failure(error: SourceError) -> Failure:
    if not isinstance(error, ApiError) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Failure.UNREACHABLE
    if error.status == HTTPStatus.TOO_MANY_REQUESTS:
        return Failure.THROTTLED
    return Failure.REFUSED
