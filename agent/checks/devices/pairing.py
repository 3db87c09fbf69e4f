"""Which socket is that of a resource's plugin. Pure.

No file says so. Best first: the socket and the resource came or went together, in earlier
snapshots; their names agree; nothing else is left for either. A resource that none of these
decides has no known socket, and nothing may be concluded from any socket for it.
"""

import binascii
import re
from base64 import b64decode
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Final, TypeAlias

from agent.model.devices import KUBELET_SOCKET, DeviceTransition, PluginSocket, TransitionKind

Pair: TypeAlias = tuple[str, str]
"""A resource, and the stem of a socket."""

_STARTED_AT: Final = re.compile(r"-[0-9]{9,}(?=\.|$)")
"""Squat's generic plugin, Akri and GKE name the socket after the second of their start."""
_SUFFIX: Final = re.compile(r"\.sock(et)?$")
_GENERIC: Final = re.compile(r"gdp-([A-Za-z0-9_=+-]+)")
"""`deviceplugin/plugin.go` of squat/generic-device-plugin: base64 of the resource."""
_TOGETHER: Final = timedelta(seconds=30)
"""From a plugin's end to the node's status that shows it, with the time between two snapshots."""
_ANY_PREFIX: Final = ("kubevirt", "nvidia")
"""Before the name of a resource, whatever its vendor: KubeVirt, and forks of NVIDIA's plugin."""


def stem(socket: str) -> str:
    """Return what stays of a socket's name when its plugin starts again."""
    return _STARTED_AT.sub("", socket)


def pair(
    resources: Collection[str],
    sockets: Sequence[PluginSocket],
    history: Sequence[DeviceTransition],
    expected: Collection[str],
) -> dict[str, str]:
    """Return the socket of each resource where that is known; it need not exist now.

    `expected`: the resources that need a plugin now, so that nothing else is left for a socket.
    """
    current = {stem(change.socket): change.socket for change in history if change.socket}
    for socket in sorted(sockets, key=lambda each: (each.made, each.name)):
        current[stem(socket.name)] = socket.name
    current.pop(KUBELET_SOCKET, None)

    paired: dict[str, str] = {}
    coincidences = Counter(_coincidences(history))
    # Once may be chance.
    repeated = [known for known, times in coincidences.items() if times > 1]
    _add_unambiguous(repeated, paired)
    for rank in (3, 2, 1):
        by_name = (
            (resource, name)
            for resource in resources
            for name in current
            if _agreement(resource, name) == rank
        )
        _add_unambiguous(by_name, paired)
    _add_unambiguous(coincidences, paired)
    _add_last(expected, sockets, history, paired)

    return {
        resource: current[name]
        for resource, name in paired.items()
        if resource in resources and name in current
    }


def _add_unambiguous(candidates: Iterable[Pair], paired: dict[str, str]) -> None:
    """Add the pairs of which neither side has another candidate or a pair already."""
    taken = set(paired.values())
    left = {known for known in candidates if known[0] not in paired and known[1] not in taken}

    resources = Counter(resource for resource, _ in left)
    names = Counter(name for _, name in left)
    paired.update(known for known in left if resources[known[0]] == names[known[1]] == 1)


def _coincidences(history: Sequence[DeviceTransition]) -> Iterator[Pair]:
    """Yield the pairs that came or went together, while nothing else did the same."""
    yield from _together(history, TransitionKind.SOCKET_APPEARED, TransitionKind.REGISTERED)
    yield from _together(history, TransitionKind.SOCKET_GONE, TransitionKind.LOST)


def _together(
    history: Sequence[DeviceTransition], of_socket: TransitionKind, of_resource: TransitionKind
) -> Iterator[Pair]:
    """Yield each resource that changed together with one socket, and with no other resource."""
    for change in history:
        if change.what is not of_resource:
            continue

        around = [other for other in history if abs(other.at - change.at) <= _TOGETHER]
        # A start of the kubelet ends all plugins at once, and they all come back.
        if any(other.what is TransitionKind.KUBELET_STARTED for other in around):
            continue

        resources = {other.resource for other in around if other.what is of_resource}
        names = {
            stem(other.socket)
            for other in around
            if other.what is of_socket and other.socket != KUBELET_SOCKET
        }
        if len(names) == len(resources) == 1:
            yield change.resource, names.pop()


@lru_cache(maxsize=4096)
def _agreement(resource: str, name: str) -> int:
    """Return how well the name of a socket agrees with a resource: 3, 2 or 1; 0: it does not."""
    bare = _SUFFIX.sub("", name)
    if generic := _GENERIC.fullmatch(bare):
        return 3 if _decoded(generic[1]) == resource else 0

    prefix, _, short = resource.partition("/")
    words = [word for word in prefix.split(".") if len(word) > 1]

    squeezed = _squeezed(bare)
    if squeezed in {_squeezed(prefix + short), _squeezed(f"kubevirt{prefix}{short}")}:
        return 3
    if squeezed in {_squeezed(word + short) for word in (*words, *_ANY_PREFIX)}:
        return 2

    is_name = squeezed == _squeezed(short)
    return int(is_name or any(bare.startswith(f"{short}_{word}") for word in words))


def _squeezed(text: str) -> str:
    return re.sub("[^a-z0-9]", "", text.lower())


def _decoded(encoded: str) -> str | None:
    """Decode base64, with or without its padding, in either alphabet; None: it is none."""
    plain = encoded.rstrip("=").translate(str.maketrans("-_", "+/"))
    try:
        return b64decode(plain + "=" * (-len(plain) % 4), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def _add_last(
    expected: Collection[str],
    sockets: Sequence[PluginSocket],
    history: Sequence[DeviceTransition],
    paired: dict[str, str],
) -> None:
    """Pair what is left, if that is one resource and one socket."""
    connected = {stem(each.name): each.connected for each in sockets}
    # In the registry there are drivers too. The kubelet stays connected to device plugins only.
    of_others = {stem(each.name) for each in sockets if each.registry and not each.connected}
    gone = {stem(change.socket) for change in history if change.socket} - {KUBELET_SOCKET}
    taken = of_others.union(paired.values())

    names = connected.keys() - taken or gone - taken
    resources = set(expected).difference(paired)
    if len(names) != 1 or len(resources) != 1:
        return

    (name,) = names
    if paired and connected.get(name, True) is False:
        return  # the kubelet may have the resource from elsewhere
    (resource,) = resources
    paired[resource] = name
