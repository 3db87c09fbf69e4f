"""What became of messages for the API server, as metrics. One without deliveries has no samples."""

from prometheus_client import CollectorRegistry

from agent.exporters.metrics import CONDITION_PATCHES, EVENTS_DROPPED, EVENTS_SENT
from agent.exporters.prometheus import counter
from agent.kube_events.delivery import Failure, Kind, Message


class DeliveryMetrics:
    """Counts Events and patches of the node's condition. Any thread may call it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sent = counter(EVENTS_SENT, registry)
        self._dropped = counter(EVENTS_DROPPED, registry)
        self._conditions = counter(CONDITION_PATCHES, registry)

    def sent(self, message: Message) -> None:
        """Count a message that the API server has accepted."""
        if message.kind is Kind.EVENT:
            self._sent.labels(message.reason).inc()
        else:
            self._conditions.labels("sent").inc()

    def failed(self, kind: Kind, failure: Failure, times: int = 1) -> None:
        """Count messages that were due and not sent, by cause."""
        counted = self._dropped if kind is Kind.EVENT else self._conditions
        counted.labels(failure.value).inc(times)
