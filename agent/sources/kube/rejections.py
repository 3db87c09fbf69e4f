"""Parses how the kubelet rejected a pod, for a device or otherwise, by the pod's status.

Texts: Kubernetes 1.18 to 1.36, `devicemanager/manager.go`, `devicemanager/endpoint.go`,
`lifecycle/predicate.go`, `preemption/preemption.go` and `kubelet.go`.
"""

import re
import sys
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final

from agent.model.clocks import STATUS_DELAY
from agent.model.rejections import (
    ADMISSION_REASONS,
    INTENDED_REASONS,
    OUT_OF,
    UNEXPECTED_ERROR,
    Rejection,
    RejectionKind,
)
from agent.model.text import escape
from agent.sources.kube.fields import RESOURCE, Object, is_device, moment

_LONGEST_READ: Final = 4096
"""Characters of a message; a kubelet writes some hundred."""
_LONGEST_KEPT: Final = 400

_SINCE_1_26: Final = "Pod was rejected: "
"""Begins the message of every rejection, whatever its reason."""
_PREEMPTION: Final = re.compile(rf"\(res: ({RESOURCE}), q: ([0-9]{{1,18}})\)", re.ASCII)
"""What a critical pod lacks for which nothing can be preempted."""
_NO_ROOM: Final = re.compile(
    r"enough resource: \S+, requested: ([0-9]{1,18}), used: ([0-9]{1,18}), capacity: ([0-9]{1,18})"
)
_CORES: Final = re.compile(
    r"available physical CPUs = ([0-9]{1,18}), requested CPUs = ([0-9]{1,18})", re.ASCII
)
"""What a kubelet counted that gives out whole cores only. The other message has no count."""
# The CPU and memory managers use the same frame; only the cause distinguishes them.
_FRAME: Final = re.compile(r"(?:Allocate|Update plugin resources) failed due to (.+)", re.DOTALL)
_SUFFIX: Final = re.compile(r",? which is unexpected\.?$")

_NAME: Final = f"(?P<resource>{RESOURCE})"
_REQUESTED: Final = "(?P<requested>[0-9]{1,18})"
_AVAILABLE: Final = "(?P<available>[0-9]{1,18})"
_A_DEVICE: Final = (
    r"(?<!left on )(?<!no such )(?<!cross-)(?<!ioctl for )\bdevices?\b(?! or resource busy)"
)
"""Not the word in the errors of system calls, which are about disks and files."""

_CRASH: Final = (
    r"rpc error: (?:code = (?:Unavailable|Canceled)\b|.*\bdial unix "
    r"|.*\bdesc = (?:error reading from server: EOF|EOF$|transport is closing))"
)
_PATTERNS: Final = (
    # A plugin's own error comes first: its text may contain anything.
    (RejectionKind.PLUGIN_CRASHED, _CRASH),
    # NVIDIA's plugin with `failRequestsGreaterThanOne`: docs of NVIDIA/k8s-device-plugin.
    (RejectionKind.REQUEST_REFUSED, r"rpc error:.*maximum request size for shared resources"),
    (RejectionKind.PLUGIN_ERROR, r"rpc error:|GetPreferredAllocation rpc failed"),
    (
        RejectionKind.CHECKPOINT_FAILED,
        r"failed to write checkpoint file|kubelet_internal_checkpoint|no space left on device",
    ),
    (RejectionKind.UNREGISTERED, rf"can(?:'t|not) allocate unregistered device {_NAME}"),
    (
        RejectionKind.POD_DEVICES_UNHEALTHY,
        rf"no longer healthy; cannot allocate unhealthy devices {_NAME}",
    ),
    (RejectionKind.NO_HEALTHY, rf"cannot allocate unhealthy devices {_NAME}"),
    (
        RejectionKind.INSUFFICIENT,
        rf"devices unavailable for {_NAME}\. Requested: {_REQUESTED}, Available: {_AVAILABLE}",
    ),
    (RejectionKind.PLUGIN_GONE, rf"unknown device plugin {_NAME}"),
    (
        RejectionKind.PLUGIN_GONE,
        rf"endpoint not found in cache for a registered resource: {_NAME}",
    ),
    (RejectionKind.PLUGIN_GONE, r"\bendpoint .*has been stopped"),
    (
        RejectionKind.REQUEST_CHANGED,
        rf'changed request for resource "?{_NAME}"? from [0-9]+ to {_REQUESTED}',
    ),
    (
        RejectionKind.PLUGIN_ERROR,
        rf"unexpectedly allocated less resources than required\. Requested: {_REQUESTED}",
    ),
    (RejectionKind.PLUGIN_ERROR, r"no containers return in allocation response"),
    (RejectionKind.OTHER, _A_DEVICE),
)
_CAUSES: Final = [
    (kind, re.compile(pattern, re.ASCII | re.DOTALL | re.IGNORECASE)) for kind, pattern in _PATTERNS
]
# A stopped endpoint is printed as a Go struct, with its resource, and until 1.24 its socket, among
# the fields.
_ENDPOINT: Final = re.compile(rf"endpoint .*?[\s{{]({RESOURCE})[\s}}]", re.ASCII | re.DOTALL)
_SOCKET: Final = re.compile(
    r'/([^\s/":,]{1,107}\.sock)\b|\bdial unix /(?:[^\s/":,]+/)*([^\s/":,]{1,107})'
)
_rejected = partial(Rejection, requested=None, available=None, at=None, message="")


def parse_rejection(
    metadata: Object, status: Object, wants: tuple[str, ...], started: datetime | None
) -> Rejection | None:
    """Return how the kubelet rejected a pod; None for every other pod.

    Evictions, preemptions and shutdowns are none, nor is a container that failed.

    `wants`: the device resources of its spec. `started`: when its first container started, by its
    status.
    """
    if status.get("phase") != "Failed":
        return None

    message = _text(status.get("message"))[:_LONGEST_READ]
    reason = _text(status.get("reason"))
    parsed = _parse(reason, message)
    if parsed is None and started is None:
        parsed = _parse_otherwise(reason, message)
    if parsed is None:
        return None

    # The message names the first resource that failed, or none; it is not guessed among several.
    only_resource = wants[0] if parsed.for_device and len(wants) == 1 else ""
    at, by_api = _rejected_at(metadata, status, started)
    # A storm has the same message a thousand times.
    shown = sys.intern(escape(" ".join(message.split()))[:_LONGEST_KEPT])

    return replace(
        parsed,
        resource=sys.intern(parsed.resource or only_resource),
        at=at,
        message=shown,
        socket=sys.intern(escape(parsed.socket)),
        by_api=by_api,
        start_time=moment(status.get("startTime")),
        reason=sys.intern(escape(reason)[:_LONGEST_KEPT]),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _parse(reason: str, message: str) -> Rejection | None:
    """Return a rejection for a device."""
    if reason == UNEXPECTED_ERROR:
        framed = _FRAME.search(message)
        if framed is None:
            return _parse_preemption(message)
        return _parse_cause(_SUFFIX.sub("", framed[1].strip()))

    resource = reason.removeprefix(OUT_OF)
    if resource == reason or not is_device(resource):
        return None
    counts = _NO_ROOM.search(message)
    if counts is None:
        return _rejected(RejectionKind.OTHER, resource)

    requested, used, capacity = map(int, counts.groups())
    kind = RejectionKind.INSUFFICIENT if capacity else RejectionKind.NO_CAPACITY
    return _rejected(kind, resource, requested=requested, available=max(0, capacity - used))


def _parse_preemption(message: str) -> Rejection | None:
    for resource, requested in _PREEMPTION.findall(message):
        if is_device(resource):
            return _rejected(RejectionKind.OTHER, resource, requested=int(requested))
    return None


def _parse_otherwise(reason: str, message: str) -> Rejection | None:
    """Return a rejection for another reason than a device."""
    is_known = reason in ADMISSION_REASONS or reason.startswith(OUT_OF)
    is_rejected = is_known or message.startswith(_SINCE_1_26)
    if not reason or reason in INTENDED_REASONS or not is_rejected:
        return None

    if counts := _CORES.search(message):
        available, requested = map(int, counts.groups())
        return _rejected(
            RejectionKind.NOT_FOR_A_DEVICE, "", requested=requested, available=available
        )
    return _rejected(RejectionKind.NOT_FOR_A_DEVICE, "")


def _parse_cause(cause: str) -> Rejection | None:
    """Return a rejection by the device manager's own words."""
    for kind, pattern in _CAUSES:
        matched = pattern.search(cause)
        if matched is None:
            continue

        groups = matched.groupdict()
        resource = groups.get("resource", "")
        if kind in {RejectionKind.PLUGIN_GONE, RejectionKind.PLUGIN_CRASHED}:
            resource = resource or _first_group(_ENDPOINT.match(matched[0]))
            return _rejected(kind, resource, socket=_first_group(_SOCKET.search(cause)))
        requested = groups.get("requested")
        available = groups.get("available")
        return _rejected(
            kind,
            resource,
            requested=int(requested) if requested else None,
            available=int(available) if available else None,
        )
    return None


def _first_group(matched: re.Match[str] | None) -> str:
    """Return the first group that matched; empty: none did."""
    return next(filter(None, matched.groups()), "") if matched else ""


def _rejected_at(
    metadata: Object, status: Object, started: datetime | None
) -> tuple[datetime | None, bool]:
    """Return when the pod was rejected, and whether by the API server's clock.

    The kubelet's last write to a rejected pod is the rejection; since 1.22 managedFields has an
    entry for the status. startTime is by the node's clock. It is the rejection's if the pod never
    ran, but is kept from an earlier admission, of which the rejection removes all traces: so it
    only counts if both times are close.
    """
    by_kubelet = (
        moment(field.get("time"))
        for field in metadata.get("managedFields") or ()
        if field.get("manager") == "kubelet" and field.get("subresource") in {None, "", "status"}
    )
    written = max(filter(None, by_kubelet), default=None)

    start = moment(status.get("startTime")) if started is None else None
    if written is None or (start is not None and abs(written - start) <= STATUS_DELAY):
        return start, False
    return written, True
