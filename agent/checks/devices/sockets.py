"""Which socket belongs to which resource. No file says it: some plugins follow a convention, for others time tells."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Final

from agent.model.devices import DevicePlugins, DeviceTransition, TransitionKind

SOON: Final = timedelta(seconds=60)
"""Within this time a plugin binds its socket and registers, and the kubelet connects and receives the devices."""


def socket_pairs(history: Iterable[DeviceTransition], devices: DevicePlugins) -> Mapping[str, str]:
    """Return the socket of each resource, where known; the socket need not exist now."""
    history = tuple(history)
    present = [one.name for one in devices.sockets]
    resources = dict.fromkeys(
        [*(one.resource for one in devices.registered), *(one.resource for one in history if one.resource)]
    )
    names = {*present, *(one.socket for one in history if one.socket)}
    paired = {resource: socket for resource in resources for socket in _conventional(resource) if socket in names}
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
    """Pair a resource that registered alone with the only socket that appeared shortly before."""
    learned: dict[str, str] = {}
    new: list[DeviceTransition] = []
    for one in history:
        match one.what:
            case TransitionKind.SOCKET_APPEARED if one.socket not in conventional.values():
                new.append(one)
            case TransitionKind.KUBELET_STARTED:
                new = []
            case TransitionKind.REGISTERED if one.resource not in conventional:
                near = {other.socket for other in new if timedelta(0) <= one.at - other.at <= SOON}
                if one.exact and len(near) == 1:
                    learned = {resource: socket for resource, socket in learned.items() if socket not in near}
                    learned[one.resource] = near.pop()
                new = []
            case _:
                pass
    return learned
