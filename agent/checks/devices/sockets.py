"""Whose socket is whose. Nothing on disk says it: some plugins keep to a convention, of others time tells. Pure."""

from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta
from typing import Final

from agent.model.devices import DevicePlugins, DeviceTransition, TransitionKind

SOON: Final = timedelta(seconds=60)
"""A plugin binds its socket and registers; the kubelet dials back and hears of its devices, all in this time."""


def socket_pairs(history: Iterable[DeviceTransition], devices: DevicePlugins) -> Mapping[str, str]:
    """Return the socket of each resource of which one is known; it need not be there now."""
    history = tuple(history)
    present = [one.name for one in devices.sockets]
    resources = dict.fromkeys([
        *(one.resource for one in devices.registered),
        *(one.resource for one in history if one.resource),
    ])  # fmt: skip
    names = {*present, *(one.socket for one in history if one.socket)}
    paired = {
        resource: socket for resource in resources for socket in _conventional(resource) if socket in names
    }  # fmt: skip
    paired |= _learned(history, paired)
    if len(resources) == len(present) == 1 and not paired:
        return dict(zip(resources, present, strict=True))
    return paired


def _conventional(resource: str) -> Iterable[str]:
    """KubeVirt (`generic_device.go`, `pci_device.go`) and NVIDIA (`internal/plugin/server.go`)."""
    vendor, _, name = resource.partition("/")
    if vendor == "devices.kubevirt.io":
        yield f"kubevirt-{name}.sock"
    if vendor == "nvidia.com":
        yield f"nvidia-{name}.sock"
    yield f"kubevirt-{resource.replace('/', '-')}.sock"


def _learned(history: Iterable[DeviceTransition], conventional: Mapping[str, str]) -> dict[str, str]:
    """A socket that appeared alone before a resource registered alone is that resource's."""
    learned: dict[str, str] = {}
    fresh: list[DeviceTransition] = []
    for one in history:
        match one.what:
            case TransitionKind.SOCKET_APPEARED if one.socket not in conventional.values():
                fresh.append(one)
            case TransitionKind.KUBELET_STARTED:
                fresh = []
            case TransitionKind.REGISTERED if one.resource not in conventional:
                if one.exact and len(near := _near(fresh, one)) == 1:
                    learned = {resource: socket for resource, socket in learned.items() if socket not in near}
                    learned[one.resource] = near.pop()
                fresh = []
            case _:
                pass
    return learned


def _near(fresh: Collection[DeviceTransition], registered: DeviceTransition) -> set[str]:
    return {one.socket for one in fresh if timedelta(0) <= registered.at - one.at <= SOON}
