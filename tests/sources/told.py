"""Sources that have it from a snapshot."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from agent.model.devices import DevicePlugins
from agent.model.registration import Autoscaler, Registration
from agent.model.snapshot import (
    Address,
    Checkpoint,
    CniResult,
    Container,
    Node,
    Pod,
    ProcessStartTimes,
    Reading,
    Snapshot,
    Store,
)
from agent.model.volumes import Attachments, Mount
from agent.model.watches import Watch
from agent.sources.error import SourceError


class Told:
    """Sources that answer what a snapshot says, and remember in which order they were asked."""

    def __init__(self, told: Snapshot, broken: str = "") -> None:
        self.asked: list[str] = []
        self.skew_asked_after: tuple[str, ...] = ()
        self.asked_about: tuple[str, ...] = ()
        self.broken = broken
        self._told = told

    def _items(self, source: str) -> tuple[Any, ...]:
        self.asked.append(source)
        if source == self.broken:
            raise SourceError("it broke")
        reading: Reading[Any] = getattr(self._told, source)
        return reading.known()

    def reservations(self) -> tuple[Store, ...]:
        self.asked.append("reservations")
        return self._told.reservations

    def checkpoints(self) -> tuple[Checkpoint, ...]:
        return self._items("checkpoints")

    def containers(self) -> tuple[Container, ...]:
        return self._items("containers")

    def cni_results(self) -> tuple[CniResult, ...]:
        return self._items("cni_results")

    def processes(self) -> tuple[ProcessStartTimes, ...]:
        return self._items("processes")

    def addresses(self) -> tuple[Address, ...]:
        return self._items("addresses")

    def pods(self) -> Reading[Pod]:
        self.asked.append("pods")
        return self._told.pods

    def node(self) -> Reading[Node]:
        self.asked.append("node")
        return self._told.node

    def device_plugins(self) -> Reading[DevicePlugins]:
        self.asked.append("device_plugins")
        return self._told.device_plugins

    def registration(self, _node: Reading[Node], _pods: Reading[Pod], _at: datetime) -> Reading[Registration]:
        self.asked.append("registration")
        return self._told.registration

    def autoscaler(self, _node: Reading[Node], _registration: Reading[Registration]) -> Reading[Autoscaler]:
        self.asked.append("autoscaler")
        return self._told.autoscaler

    def watches(self) -> Reading[Watch]:
        self.asked.append("watches")
        return self._told.watches

    def server_version(self) -> str:
        return self._told.server_version

    def mounts(self) -> Reading[Mount]:
        self.asked.append("mounts")
        return self._told.mounts

    def attachments(self, volumes: Sequence[str], pods: Sequence[Pod]) -> Reading[Attachments]:
        self.asked.append("attachments")
        self.asked_about = (*volumes, *(pod.name for pod in pods))
        return self._told.attachments

    def api_skew(self) -> timedelta | None:
        self.skew_asked_after = tuple(self.asked)
        return self._told.api_skew
