"""The kubelet's device checkpoint: which devices it knows, and which containers it gave them to. Pure, over bytes.

`DeviceIDs` is a list of devices up to kubelet 1.19, and a list for each NUMA node since 1.20. The checksum is not
verified: the kubelet replaces the file by a rename, so it is never half written.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from agent.model.devices import Allocation, Registered
from agent.model.text import escape
from agent.sources.source_error import SourceError

NAME = "kubelet_internal_checkpoint"
MAX_CHECKPOINT_BYTES: Final = 1024 * 1024
"""Bytes. A node of 110 pods and 1,000 devices has a tenth of that."""
MOST_PLUGINS: Final = 500
"""Sockets of plugins, and resources of a checkpoint. A node has a few; for so many, a sync takes about a second."""

_NUMA_NODE = re.compile(r"-?[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class DeviceCheckpoint:
    registered: tuple[Registered, ...] = ()
    allocations: tuple[Allocation, ...] = ()


def parse_checkpoint(content: bytes) -> DeviceCheckpoint:
    """Read a checkpoint; raises SourceError with the reason, whatever the bytes."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{NAME}: not JSON ({len(content)} bytes)") from error
    try:
        data = tree["Data"]
        registered = {} if data["RegisteredDevices"] is None else data["RegisteredDevices"]
        check_number(len(registered), f"{NAME}: resources")
        return DeviceCheckpoint(
            tuple(Registered(_text(resource), _devices(listed)) for resource, listed in sorted(registered.items())),
            tuple(map(_allocation, _list(data["PodDeviceEntries"]))),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(f"{NAME}: unknown format ({type(error).__name__}: {error})") from error


def check_number(number: int, of: str) -> None:
    """Raise SourceError if there are too many."""
    if number > MOST_PLUGINS:
        raise SourceError(f"{of}: {number:,}, more than the limit of {MOST_PLUGINS}: find out what makes so many")


def _allocation(entry: Mapping[str, Any]) -> Allocation:
    by_numa_node = entry["DeviceIDs"]
    if not isinstance(by_numa_node, dict):
        by_numa_node = {"0": by_numa_node}
    if odd := [key for key in by_numa_node if not _NUMA_NODE.fullmatch(key)]:
        raise ValueError(f"{odd[0]!r:.40} is not a NUMA node")
    devices = _sorted(device for listed in by_numa_node.values() for device in _devices(listed))
    return Allocation(_text(entry["PodUID"]), _text(entry["ContainerName"]), _text(entry["ResourceName"]), devices)


def _devices(tree: Any) -> tuple[str, ...]:
    return _sorted(map(_text, _list(tree)))


def _sorted(devices: Iterable[str]) -> tuple[str, ...]:
    """Sort devices: the kubelet writes its sets in random order."""
    return tuple(sorted(devices))


def _list(tree: Any) -> list[Any]:
    """Return a list; Go writes an empty one as null too."""
    if tree is None:
        return []
    if not isinstance(tree, list):
        raise TypeError(f"{tree!r:.40} is not a list")
    return tree


def _text(tree: Any) -> str:
    if not isinstance(tree, str):
        raise TypeError(f"{tree!r:.40} is not a string")
    return escape(tree)
