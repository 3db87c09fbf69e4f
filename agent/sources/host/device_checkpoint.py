"""The device manager's checkpoint: which devices the kubelet knows, and to whom it gave them. Pure, over bytes.

Two forms: a list of devices for each container and resource (kubelet <= 1.19), and a list for each NUMA node
(>= 1.20). In both the checksum is FNV-1a over Go's own words for the data (`spew`, `%#v` with sorted keys), so the data
is said in those words again: what does not match was half written, edited, or is of a kubelet not yet known.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from agent.model.devices import Allocation, Registered
from agent.model.text import escape
from agent.sources.error import SourceError

NAME = "kubelet_internal_checkpoint"
LARGEST = 1024 * 1024
"""Bytes. A node of 110 pods and 1,000 devices has a tenth of that."""

_NUMA_NODE = re.compile(r"-?[0-9]{1,9}")
_NIL = "<nil>"


@dataclass(frozen=True, slots=True)
class DeviceCheckpoint:
    registered: tuple[Registered, ...] = ()
    allocations: tuple[Allocation, ...] = ()


@dataclass(frozen=True, slots=True)
class _Entry:
    """One `PodDevicesEntry`, as it is written."""

    pod_uid: str
    container: str
    resource: str
    devices: "_Devices"
    response: bytes | None


_Devices: TypeAlias = list[str] | dict[int, list[str] | None] | None
_Known: TypeAlias = dict[str, list[str] | None] | None


def parse(content: bytes) -> DeviceCheckpoint:
    """Read a checkpoint; raises Unavailable with the reason, whatever the bytes."""
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SourceError(f"{NAME}: it is not JSON ({len(content)} bytes): half written?") from error
    try:
        data, checksum = tree["Data"], tree["Checksum"]
        entries = None if (listed := data.get("PodDeviceEntries")) is None else [_entry(one) for one in listed]
        known = _known(data.get("RegisteredDevices"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceError(f"{NAME}: it is of a form that is not known ({type(error).__name__}: {error})") from error
    found = _checksums(entries, known)
    if checksum not in found:
        given, hashed = escape(f"{checksum!s:.20}"), " or ".join(map(str, found))
        raise SourceError(
            f"{NAME}: its checksum is {given}, and its content has {hashed}: "
            "it was changed, or is of a kubelet that is not known"
        )
    return DeviceCheckpoint(
        tuple(Registered(escape(name), _sorted(devices)) for name, devices in sorted((known or {}).items())),
        tuple(_allocation(entry) for entry in entries or ()),
    )


def _allocation(entry: _Entry) -> Allocation:
    devices = entry.devices
    if isinstance(devices, dict):
        devices = [device for listed in devices.values() for device in listed or ()]
    pod_uid, container, resource = map(escape, (entry.pod_uid, entry.container, entry.resource))
    return Allocation(pod_uid, container, resource, _sorted(devices))


def _sorted(devices: Sequence[str] | None) -> tuple[str, ...]:
    """Sort them: the kubelet writes its sets in no order, and the same devices are the same reading."""
    return tuple(sorted(map(escape, devices or ())))


# From JSON to what Go reads from it.


def _entry(tree: Mapping[str, Any]) -> _Entry:
    response = tree.get("AllocResp")
    return _Entry(
        pod_uid=_text(tree.get("PodUID")),
        container=_text(tree.get("ContainerName")),
        resource=_text(tree.get("ResourceName")),
        devices=_devices(tree.get("DeviceIDs")),
        response=None if response is None else base64.b64decode(_text(response), validate=True),
    )


def _devices(tree: Any) -> _Devices:
    if isinstance(tree, dict):
        if odd := [key for key in tree if not _NUMA_NODE.fullmatch(key)]:
            raise ValueError(f"{odd[0]!r:.40} is no NUMA node")
        return {int(key): _texts(listed) for key, listed in tree.items()}
    return _texts(tree)


def _known(tree: Any) -> _Known:
    return None if tree is None else {_text(name): _texts(devices) for name, devices in tree.items()}


def _texts(tree: Any) -> list[str] | None:
    if tree is None:
        return None
    if not isinstance(tree, list):
        raise TypeError(f"{tree!r:.40} is no list of devices")
    return [_text(one) for one in tree]


def _text(tree: Any) -> str:
    """Read a string; one that is missing or null is an empty one to Go."""
    if tree is None:
        return ""
    if not isinstance(tree, str):
        raise TypeError(f"{tree!r:.40} is no text")
    return tree


# Go's own words for it, and their checksum.


def _checksums(entries: list[_Entry] | None, known: _Known) -> tuple[int, ...]:
    """Return the checksum in each of the forms that the data can have: where no device is listed, it can have both."""
    shapes = {type(entry.devices) for entry in entries or ()} - {type(None)}
    forms = [kind for kind in ("[]string", "checkpoint.DevicesPerNUMA") if shapes <= {_SHAPES[kind]}]
    if not forms:
        raise SourceError(f"{NAME}: its entries are of both forms")
    return tuple(dict.fromkeys(fnv1a(_said(entries, known, kind).encode(errors="surrogatepass")) for kind in forms))


_SHAPES: dict[str, type] = {"[]string": list, "checkpoint.DevicesPerNUMA": dict}


def _said(entries: list[_Entry] | None, known: _Known, kind: str) -> str:
    listed = _NIL if entries is None else _bracketed([_said_entry(entry, kind) for entry in entries])
    return (
        "(checkpoint.checkpointData){"
        f"PodDeviceEntries:([]checkpoint.PodDevicesEntry){listed} "
        f"RegisteredDevices:(map[string][]string){_said_map(known, _said_list)}"
        "}"
    )


def _said_entry(entry: _Entry, kind: str) -> str:
    devices = entry.devices
    said = _said_map(devices, _said_list) if isinstance(devices, dict) else _said_list(devices)
    response = _NIL if entry.response is None else _bracketed(list(map(str, entry.response)))
    return (
        f"{{PodUID:(string){entry.pod_uid} ContainerName:(string){entry.container} "
        f"ResourceName:(string){entry.resource} DeviceIDs:({kind}){said} AllocResp:([]uint8){response}}}"
    )


def _said_map(tree: Mapping[Any, list[str] | None] | None, said: Callable[[list[str] | None], str]) -> str:
    if tree is None:
        return _NIL
    return "map" + _bracketed([f"{key}:{said(tree[key])}" for key in sorted(tree)])


def _said_list(listed: list[str] | None) -> str:
    return _NIL if listed is None else _bracketed(listed)


def _bracketed(words: list[str]) -> str:
    return f"[{' '.join(words)}]"


def fnv1a(content: bytes) -> int:
    """Return the 32-bit FNV-1a hash."""
    found = 2166136261
    for byte in content:
        found = ((found ^ byte) * 16777619) & 0xFFFFFFFF
    return found
