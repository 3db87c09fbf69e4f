"""Messages for the API server, their counters, and the thread that delivers them, best effort: no sync waits for it."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from queue import Full, Queue
from threading import Event
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry, Counter

from agent.kube_events.writer import Writer
from agent.sources.kube.client import ApiError
from agent.sources.source_error import SourceError

REPEAT_AFTER: Final = timedelta(minutes=5)
"""What lasts is sent again: a message, or the object itself, may get lost."""
_CAPACITY: Final = 64


class Kind(StrEnum):
    EVENT = "event"
    CONDITION = "condition"


class Failure(StrEnum):
    """Why a message was not delivered: own limits, a client error, 429 twice, no answer or a server error."""

    RATE_LIMITED = "rate_limited"
    QUEUE_FULL = "queue_full"
    REFUSED = "refused"
    THROTTLED = "throttled"
    UNREACHABLE = "unreachable"


class Message(NamedTuple):
    kind: Kind
    reason: str
    """The label of its counter."""
    send: Callable[[Writer], object]
    """Raises SourceError."""


class DeliveryMetrics:
    """Counters. One without deliveries is absent."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace="nodeleak", registry=registry)
        sent = "Kubernetes Events created or patched since the agent started."
        self._sent = counter("events_sent_total", sent, ["reason"])
        dropped = "Kubernetes Events that were due but not sent, by cause."
        self._dropped = counter("events_dropped_total", dropped, ["cause"])
        patches = "Patches of the node's condition, by result."
        self._conditions = counter("node_condition_patches_total", patches, ["result"])

    def sent(self, message: Message) -> None:
        counter = (
            self._sent.labels(message.reason)
            if message.kind is Kind.EVENT
            else self._conditions.labels("sent")
        )
        counter.inc()

    def failed(self, kind: Kind, failure: Failure, times: int = 1) -> None:
        counter = self._dropped if kind is Kind.EVENT else self._conditions
        counter.labels(failure.value).inc(times)


class DeliveryQueue:
    """`put` and `stop` return at once and may be called from any thread; `run` belongs to one."""

    def __init__(
        self,
        writer: Writer,
        metrics: DeliveryMetrics,
        warn: Callable[[str, str, str], None],
        retry_after: float = 10,
    ) -> None:
        """`warn`: called once for each kind of failure. `retry_after`: seconds, after 429: servers ask for 1 to 8."""
        self.metrics = metrics
        self._writer, self._warn, self._retry_after = writer, warn, retry_after
        self._waiting: Queue[Message | None] = Queue(_CAPACITY)
        self._stopped = Event()
        self._warned: set[tuple[Kind, Failure]] = set()

    def put(self, message: Message) -> None:
        try:
            self._waiting.put_nowait(message)
        except Full:
            self._failed(message, Failure.QUEUE_FULL, f"{_CAPACITY} messages are waiting")

    def run(self) -> None:
        """Deliver messages until `stop`; those that wait then are lost."""
        while (message := self._waiting.get()) is not None and not self._stopped.is_set():
            self._deliver(message)
            if self._waiting.empty():  # the next message may come in minutes, or never
                self._writer.close()

    def stop(self) -> None:
        self._stopped.set()
        # Wakes a thread that waits for a message; with a full queue none does.
        with suppress(Full):
            self._waiting.put_nowait(None)

    def _deliver(self, message: Message) -> None:
        try:
            try:
                message.send(self._writer)
            except ApiError as error:
                if error.status != HTTPStatus.TOO_MANY_REQUESTS:
                    raise
                self._stopped.wait(self._retry_after)
                message.send(self._writer)
        except SourceError as error:
            self._failed(message, _failure(error), str(error))
            # Credentials may have been rotated, and the server replaced.
            self._writer.close()
        else:
            self.metrics.sent(message)

    def _failed(self, message: Message, failure: Failure, why: str) -> None:
        self.metrics.failed(message.kind, failure)
        if (message.kind, failure) not in self._warned:
            self._warned.add((message.kind, failure))
            self._warn(message.kind.value, failure.value, why)


def _failure(error: SourceError) -> Failure:
    if not isinstance(error, ApiError) or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return Failure.UNREACHABLE
    return Failure.THROTTLED if error.status == HTTPStatus.TOO_MANY_REQUESTS else Failure.REFUSED
