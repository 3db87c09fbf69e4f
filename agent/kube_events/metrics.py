"""Counters of deliveries to the API server. They exist in every mode, with zeros."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter

from agent.kube_events.messages import REASONS
from agent.kube_events.queue import Failure, Kind, Message

SENT: Final = "sent"


class DeliveryMetrics:
    """Safe for threads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sent = Counter(
            "nodeleak_events_sent_total",
            "Kubernetes Events created or patched since the agent started.",
            ["reason"],
            registry=registry,
        )
        self._dropped = Counter(
            "nodeleak_events_dropped_total",
            "Kubernetes Events that were due but not sent, by cause.",
            ["cause"],
            registry=registry,
        )
        self._conditions = Counter(
            "nodeleak_node_condition_patches_total",
            "Patches of the node's condition, by result.",
            ["result"],
            registry=registry,
        )
        for reason in REASONS:
            self._sent.labels(reason)
        for failure in Failure:
            self._dropped.labels(failure.value)
            if failure is not Failure.RATE_LIMITED:
                self._conditions.labels(failure.value)
        self._conditions.labels(SENT)

    def sent(self, message: Message) -> None:
        if message.kind is Kind.EVENT:
            self._sent.labels(message.reason).inc()
        else:
            self._conditions.labels(SENT).inc()

    def failed(self, kind: Kind, failure: Failure, times: int = 1) -> None:
        counter = self._dropped if kind is Kind.EVENT else self._conditions
        counter.labels(failure.value).inc(times)
