"""Counters of deliveries to the API server. One without deliveries is absent."""

from functools import partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter

from agent.kube_events.queue import Failure, Kind, Message

SENT: Final = "sent"


class DeliveryMetrics:
    """Safe for threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = partial(Counter, namespace="nodeleak", registry=registry)
        self._sent = counter(
            "events_sent_total", "Kubernetes Events created or patched since the agent started.", ["reason"]
        )
        self._dropped = counter(
            "events_dropped_total", "Kubernetes Events that were due but not sent, by cause.", ["cause"]
        )
        self._conditions = counter(
            "node_condition_patches_total", "Patches of the node's condition, by result.", ["result"]
        )

    def sent(self, message: Message) -> None:
        if message.kind is Kind.EVENT:
            self._sent.labels(message.reason).inc()
        else:
            self._conditions.labels(SENT).inc()

    def failed(self, kind: Kind, failure: Failure, times: int = 1) -> None:
        counter = self._dropped if kind is Kind.EVENT else self._conditions
        counter.labels(failure.value).inc(times)
