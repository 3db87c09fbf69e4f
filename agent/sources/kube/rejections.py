"""Reads from a pod's status how the kubelet rejected it for a device, in the messages of every version. Pure.

Texts: Kubernetes 1.18 to 1.36, `devicemanager/manager.go`, `devicemanager/endpoint.go`, `lifecycle/predicate.go`.
"""

import re
import sys
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from agent.model.rejections import Rejection, RejectionKind
from agent.model.text import escape
from agent.sources.kube.fields import RESOURCE, is_device, moment

_LONGEST_READ: Final = 4096  # characters; a kubelet writes some hundred
_LONGEST_KEPT: Final = 400
_ONE_MOMENT: Final = timedelta(seconds=5)
"""Between a rejection and its arrival at the API server, including the difference of the two clocks."""

_OUT_OF = "OutOf"
_NO_ROOM = re.compile(r"enough resource: \S+, requested: ([0-9]{1,18}), used: ([0-9]{1,18}), capacity: ([0-9]{1,18})")

# The CPU and memory managers use the same frame; only the cause distinguishes them.
_FRAME = re.compile(r"(?:Allocate|Update plugin resources) failed due to (.+)", re.DOTALL)
_SUFFIX = re.compile(r",? which is unexpected\.?$")

_R: Final = f"(?P<resource>{RESOURCE})"
_N: Final = "(?P<requested>[0-9]{1,18})"
_M: Final = "(?P<available>[0-9]{1,18})"
_CAUSES: Final = tuple(
    (refused, re.compile(pattern, re.ASCII | re.DOTALL | re.IGNORECASE))
    for refused, pattern in (
        # A plugin's own error comes first: its text may contain anything.
        (RejectionKind.PLUGIN_GONE, r"rpc error: code = (?:Unavailable|Canceled)\b|rpc error: .*\bdial unix "),
        (RejectionKind.OTHER, r"rpc error:|GetPreferredAllocation rpc failed"),
        (RejectionKind.UNREGISTERED, rf"can(?:'t|not) allocate unregistered device {_R}"),
        (RejectionKind.NO_HEALTHY, rf"cannot allocate unhealthy devices {_R}"),
        (RejectionKind.INSUFFICIENT, rf"devices unavailable for {_R}\. Requested: {_N}, Available: {_M}"),
        (RejectionKind.PLUGIN_GONE, rf"unknown device plugin {_R}"),
        (RejectionKind.PLUGIN_GONE, rf"endpoint not found in cache for a registered resource: {_R}"),
        (RejectionKind.PLUGIN_GONE, r"\bendpoint .*has been stopped"),
        (RejectionKind.OTHER, rf'changed request for resource "?{_R}"? from [0-9]+ to {_N}'),
        (RejectionKind.OTHER, rf"unexpectedly allocated less resources than required\. Requested: {_N}"),
        (RejectionKind.OTHER, r"no containers return in allocation response|kubelet_internal_checkpoint|\bdevices?\b"),
    )
)
# A stopped endpoint is printed as a Go struct, with its resource, and until 1.24 its socket, among the fields.
_WORD = re.compile(rf"endpoint .*?[\s{{]({RESOURCE})[\s}}]", re.ASCII | re.DOTALL)
_SOCKET = re.compile(r'/([^\s/":,]{1,107}\.sock)\b|\bdial unix /(?:[^\s/":,]+/)*([^\s/":,]{1,107})')


class _Message(NamedTuple):
    refused: RejectionKind
    resource: str = ""
    requested: int | None = None
    available: int | None = None
    socket: str = ""


def read_rejection(
    metadata: Mapping[str, Any], status: Mapping[str, Any], wants: tuple[str, ...], started: datetime | None
) -> Rejection | None:
    """Return how a pod was rejected for a device; None for every other pod.

    `wants`: the device resources of its spec. `started`: when its first container started, by its status.
    """
    reason, message = _text(status.get("reason")), _text(status.get("message"))
    if status.get("phase") != "Failed" or (parsed := _parse(reason, message[:_LONGEST_READ])) is None:
        return None
    at, by_api = _rejected_at(metadata, status, started)
    return Rejection(
        refused=parsed.refused,
        # The message names the first resource that failed, or none; it is not guessed among several.
        resource=sys.intern(parsed.resource or (wants[0] if len(wants) == 1 else "")),
        requested=parsed.requested,
        available=parsed.available,
        at=at,
        # A storm has the same message a thousand times.
        message=sys.intern(escape(" ".join(message[:_LONGEST_READ].split()))[:_LONGEST_KEPT]),
        socket=sys.intern(escape(parsed.socket)),
        by_api=by_api,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _parse(reason: str, message: str) -> _Message | None:
    if reason == "UnexpectedAdmissionError":
        framed = _FRAME.search(message)
        return _cause(_SUFFIX.sub("", framed[1].strip())) if framed else None
    if reason.startswith(_OUT_OF) and is_device(resource := reason.removeprefix(_OUT_OF)):
        return _no_room(resource, message)
    return None


def _no_room(resource: str, message: str) -> _Message:
    counts = _NO_ROOM.search(message)
    if counts is None:
        return _Message(RejectionKind.OTHER, resource)
    requested, used, capacity = map(int, counts.groups())
    refused = RejectionKind.INSUFFICIENT if capacity else RejectionKind.NO_CAPACITY
    return _Message(refused, resource, requested, max(0, capacity - used))


def _cause(cause: str) -> _Message | None:
    for refused, pattern in _CAUSES:
        if found := pattern.search(cause):
            named = found.groupdict()
            if refused is RejectionKind.PLUGIN_GONE:
                resource = named.get("resource") or _group(_WORD.match(found[0]))
                return _Message(refused, resource, socket=_group(_SOCKET.search(cause)))
            requested, available = (int(named[name]) if name in named else None for name in ("requested", "available"))
            return _Message(refused, named.get("resource", ""), requested, available)
    return None


def _group(found: re.Match[str] | None) -> str:
    return next(filter(None, found.groups()), "") if found else ""


def _rejected_at(
    metadata: Mapping[str, Any], status: Mapping[str, Any], started: datetime | None
) -> tuple[datetime | None, bool]:
    """Return when the pod was rejected, and whether by the API server's clock."""
    # The kubelet's last write to a rejected pod is the rejection; since 1.22 managedFields has an entry for the status.
    # startTime is by the node's clock. It is the rejection's if the pod never ran, but is kept from an earlier
    # admission, of which the rejection removes all traces: so it only counts if both times are close.
    by_kubelet = (
        moment(field.get("time"))
        for field in metadata.get("managedFields") or ()
        if field.get("manager") == "kubelet" and field.get("subresource") in {None, "", "status"}
    )
    written = max(filter(None, by_kubelet), default=None)
    start = moment(status.get("startTime")) if started is None else None
    if written is None or (start is not None and abs(written - start) <= _ONE_MOMENT):
        return start, False
    return written, True
