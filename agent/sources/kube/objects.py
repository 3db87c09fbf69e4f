"""Parses the pods of this node, and its Node object, as the API server has them."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address
from itertools import chain
from operator import index
from typing import Any, Final

from agent.model.clocks import STATUS_DELAY
from agent.model.registration import DELETION_CANDIDATE, TO_BE_DELETED, UNINITIALIZED, Taint
from agent.model.rejections import Rejection, RejectionKind
from agent.model.snapshot import ADDRESS_PRESSURE, Node, NodeDevices, Pod, PortMapping
from agent.model.text import escape
from agent.sources.kube.client import Resource
from agent.sources.kube.fields import (
    RESOURCE,
    Object,
    condition,
    count,
    is_device,
    moment,
    objects,
    sorted_names,
)


def pods_of(node: str) -> Resource[Pod]:
    # RBAC cannot restrict the list to this node; with the selector the server sends nothing else.
    return Resource(
        "pods", "/api/v1/pods", (("fieldSelector", f"spec.nodeName={node}"),), parse_pod
    )


def parse_pod(item: Object) -> Pod:
    """Parse a pod; raises KeyError, TypeError, ValueError or AttributeError if it is none."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    phase = status.get("phase") or ""
    if not isinstance(phase, str):
        raise TypeError(f"phase {phase!r}")
    # The status has the last two runs of each container.
    started = min(filter(None, _starts(status)), default=None)
    wants_in_init = sorted_names(_wanted(spec, "initContainers"))
    wants = sorted_names((*wants_in_init, *_wanted(spec, "containers")))
    ips, volumes = _ips(status), objects(spec.get("volumes"))
    attached = (unique_volume_name(volume, str(volume.get("name"))) for volume in volumes)
    pod = Pod(
        name=f"{metadata['namespace']}/{metadata['name']}",
        uid=_uid(metadata),
        phase=sys.intern(phase),
        host_network=bool(spec.get("hostNetwork")),
        deleting=bool(metadata.get("deletionTimestamp")),
        ips=ips,
        created=moment(metadata.get("creationTimestamp")),
        started=started,
        wants=wants,
        wants_in_init=wants_in_init,
        rejection=_rejection(metadata, status, wants, started),
        controller=sys.intern(_controller(metadata)),
        deletion=moment(metadata.get("deletionTimestamp")),
        finalizers=sorted_names(map(str, metadata.get("finalizers") or ())),
        # Only needed while the pod waits, and a time for every pod needs memory on every node.
        scheduled=None if ips else _scheduled(status),
        claims=sorted_names(_claims(str(metadata["name"]), volumes)),
        volumes=sorted_names(filter(None, attached)),
        static=_is_mirror(metadata),
        host_ports=() if spec.get("hostNetwork") else tuple(dict.fromkeys(_host_ports(spec))),
        waiting=any(map(_waits, _statuses(status))),
    )
    # A node can have thousands of terminated pods, and only a live pod owns addresses or waits for volumes.
    return pod if pod.live else replace(pod, ips=(), claims=(), volumes=())


def _uid(metadata: Object) -> str:
    """Return the uid that the kubelet uses: a static pod's own, not that of its mirror."""
    own = metadata["annotations"].get("kubernetes.io/config.hash") if _is_mirror(metadata) else None
    return str(own or metadata["uid"])


def _is_mirror(metadata: Object) -> bool:
    return "kubernetes.io/config.mirror" in (metadata.get("annotations") or {})


def _ips(status: Object) -> tuple[str, ...]:
    ips = [ip["ip"] for ip in status.get("podIPs") or () if ip.get("ip")]
    # Servers before 1.16 send only `podIP`.
    return tuple(str(ip_address(str(ip))) for ip in ips or filter(None, [status.get("podIP")]))


def _wanted(spec: Object, containers: str) -> Iterator[str]:
    for container in spec.get(containers) or ():
        resources = container.get("resources") or {}
        for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
            yield from (
                name for name, amount in amounts.items() if is_device(name) and count(amount) != 0
            )


def _claims(pod: str, volumes: Iterable[Object]) -> Iterator[str]:
    for volume in volumes:
        if isinstance(claim := volume.get("persistentVolumeClaim"), Mapping):
            yield str(claim.get("claimName"))
        elif volume.get("ephemeral"):
            yield f"{pod}-{volume.get('name')}"


def _host_ports(spec: Object) -> Iterator[PortMapping]:
    for containers in ("initContainers", "containers"):
        for container in objects(spec.get(containers)):
            for port in objects(container.get("ports")):
                if host_port := port.get("hostPort"):
                    yield PortMapping(index(host_port), str(port.get("protocol") or "TCP").lower())


def _scheduled(status: Object) -> datetime | None:
    given = condition(status, "PodScheduled")
    return moment(given.get("lastTransitionTime")) if given.get("status") == "True" else None


def _statuses(status: Object) -> Iterator[Object]:
    return chain(status.get("initContainerStatuses") or (), status.get("containerStatuses") or ())


def _waits(container: Object) -> bool:
    return "waiting" in (container.get("state") or {})


def _starts(status: Object) -> Iterator[datetime | None]:
    for container in _statuses(status):
        for state in (container.get("state") or {}, container.get("lastState") or {}):
            for run in ("running", "terminated"):
                yield moment((state.get(run) or {}).get("startedAt"))


def _controller(metadata: Object) -> str:
    for owner in metadata.get("ownerReferences") or ():
        # The node owns its mirror pods, but replaces none: a rejected pod stays rejected.
        if owner.get("controller") is True and owner["kind"] != "Node":
            return f"{owner['kind']}/{owner['name']}"
    return ""


_VOLUMES: Final[Mapping[str, str]] = {
    "awsElasticBlockStore": "kubernetes.io/aws-ebs/{volumeID}",
    "azureDisk": "kubernetes.io/azure-disk/{diskURI}",
    "cinder": "kubernetes.io/cinder/{volumeID}",
    "csi": "kubernetes.io/csi/{driver}^{volumeHandle}",
    "flexVolume": "{driver}/{object name}",
    "gcePersistentDisk": "kubernetes.io/gce-pd/{pdName}",
    "iscsi": "kubernetes.io/iscsi/{targetPortal}:{iqn}:{lun}",
    "rbd": "kubernetes.io/rbd/{pool}:{image}",
    "vsphereVolume": "kubernetes.io/vsphere-volume/{volumePath}",
}
"""How each kind is named in the node's status, by its fields. Other kinds (Fibre Channel) cannot be named from here.

The kind `csi` of a pod has no handle: it is never attached.
"""
_DEFAULTS: Final = {"lun": "0", "pool": "rbd"}  # of Kubernetes


def unique_volume_name(described: Object, name: str) -> str:
    """Return a volume's name in the node's status; empty: it need not be attached, or is of an unknown kind."""
    # `name`: of the PersistentVolume, or of the volume in its pod.
    kind = next((kind for kind in _VOLUMES if isinstance(described.get(kind), Mapping)), None)
    if kind is None:
        return ""
    given = {
        field: value for field, value in {**described[kind], "object name": name}.items() if value
    }
    try:
        return _VOLUMES[kind].format_map(_DEFAULTS | given)
    except KeyError:
        return ""


NODES_PATH = "/api/v1/nodes"
_CONTROLLER_ATTACH = "volumes.kubernetes.io/controller-managed-attach-detach"


def own_node(name: str) -> Resource[Node]:
    return Resource("node", NODES_PATH, (("fieldSelector", f"metadata.name={name}"),), parse_node)


def parse_node(item: Object) -> Node:
    """Parse a Node; raises KeyError, TypeError or AttributeError if it is none."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    in_use, info = status.get("volumesInUse"), status.get("nodeInfo") or {}
    return Node(
        name=str(metadata["name"]),
        # Servers before 1.16 send only `podCIDR`.
        pod_cidrs=tuple(map(str, spec.get("podCIDRs") or filter(None, [spec.get("podCIDR")]))),
        max_pods=_max_pods(status),
        devices=tuple(_devices(status)),
        address_pressure=sys.intern(str(condition(status, ADDRESS_PRESSURE).get("status", ""))),
        uid=str(metadata.get("uid") or ""),
        created=moment(metadata.get("creationTimestamp")),
        provider_id=escape(str(spec.get("providerID") or "")),
        taints=tuple(_taints(spec)),
        unschedulable=spec.get("unschedulable") is True,
        ready=condition(status, "Ready").get("status") == "True",
        controller_attach=(metadata.get("annotations") or {}).get(_CONTROLLER_ATTACH) == "true",
        volumes_in_use=sorted_names(map(str, in_use)) if isinstance(in_use, list) else (),
        volumes_attached=_volumes_attached(status),
        runtime=str(info.get("containerRuntimeVersion") or ""),
        kubelet=str(info.get("kubeletVersion", "")),
    )


def _max_pods(status: Object) -> int | None:
    pods = str((status.get("allocatable") or {}).get("pods"))
    return count(pods) if pods.isdecimal() else None


def _volumes_attached(status: Object) -> tuple[str, ...]:
    return sorted_names(
        str(volume["name"]) for volume in objects(status.get("volumesAttached")) if "name" in volume
    )


def _devices(status: Object) -> Iterator[NodeDevices]:
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    for resource in sorted_names(name for name in (*capacity, *allocatable) if is_device(name)):
        total, usable = count(capacity.get(resource, 0)), count(allocatable.get(resource, 0))
        if total is not None and usable is not None:
            yield NodeDevices(resource, total, usable)


_RELEVANT_TAINTS: Final = frozenset({UNINITIALIZED, TO_BE_DELETED, DELETION_CANDIDATE})
_SECONDS: Final = re.compile(
    "[0-9]{1,11}"
)  # since the epoch, as the autoscaler writes a time; others write `true`


def _taints(spec: Object) -> Iterator[Taint]:
    for taint in objects(spec.get("taints")):
        if str(taint.get("key")) in _RELEVANT_TAINTS:
            written = str(taint.get("value"))
            at = datetime.fromtimestamp(int(written), UTC) if _SECONDS.fullmatch(written) else None
            yield Taint(taint["key"], at)


# How the kubelet rejected a pod for a device, by its status. Texts: Kubernetes 1.18 to 1.36,
# `devicemanager/manager.go`, `devicemanager/endpoint.go`, `lifecycle/predicate.go`.

_LONGEST_READ: Final = 4096  # characters; a kubelet writes some hundred
_LONGEST_KEPT: Final = 400

_OUT_OF = "OutOf"
_NO_ROOM = re.compile(
    r"enough resource: \S+, requested: ([0-9]{1,18}), used: ([0-9]{1,18}), capacity: ([0-9]{1,18})"
)

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
        (
            RejectionKind.PLUGIN_GONE,
            r"rpc error: code = (?:Unavailable|Canceled)\b|rpc error: .*\bdial unix ",
        ),
        (RejectionKind.OTHER, r"rpc error:|GetPreferredAllocation rpc failed"),
        (RejectionKind.UNREGISTERED, rf"can(?:'t|not) allocate unregistered device {_R}"),
        (RejectionKind.NO_HEALTHY, rf"cannot allocate unhealthy devices {_R}"),
        (
            RejectionKind.INSUFFICIENT,
            rf"devices unavailable for {_R}\. Requested: {_N}, Available: {_M}",
        ),
        (RejectionKind.PLUGIN_GONE, rf"unknown device plugin {_R}"),
        (
            RejectionKind.PLUGIN_GONE,
            rf"endpoint not found in cache for a registered resource: {_R}",
        ),
        (RejectionKind.PLUGIN_GONE, r"\bendpoint .*has been stopped"),
        (RejectionKind.OTHER, rf'changed request for resource "?{_R}"? from [0-9]+ to {_N}'),
        (
            RejectionKind.OTHER,
            rf"unexpectedly allocated less resources than required\. Requested: {_N}",
        ),
        (
            RejectionKind.OTHER,
            r"no containers return in allocation response|kubelet_internal_checkpoint|\bdevices?\b",
        ),
    )
)
# A stopped endpoint is printed as a Go struct, with its resource, and until 1.24 its socket, among the fields.
_WORD = re.compile(rf"endpoint .*?[\s{{]({RESOURCE})[\s}}]", re.ASCII | re.DOTALL)
_SOCKET = re.compile(r'/([^\s/":,]{1,107}\.sock)\b|\bdial unix /(?:[^\s/":,]+/)*([^\s/":,]{1,107})')
_refused = partial(Rejection, requested=None, available=None, at=None, message="")


def _rejection(
    metadata: Object, status: Object, wants: tuple[str, ...], started: datetime | None
) -> Rejection | None:
    """Return how a pod was rejected for a device; None for every other pod."""
    # `wants`: the device resources of its spec. `started`: when its first container started, by its status.
    reason, message = _text(status.get("reason")), _text(status.get("message"))
    if (
        status.get("phase") != "Failed"
        or (parsed := _parse(reason, message[:_LONGEST_READ])) is None
    ):
        return None
    at, by_api = _rejected_at(metadata, status, started)
    return replace(
        parsed,
        # The message names the first resource that failed, or none; it is not guessed among several.
        resource=sys.intern(parsed.resource or (wants[0] if len(wants) == 1 else "")),
        at=at,
        # A storm has the same message a thousand times.
        message=sys.intern(escape(" ".join(message[:_LONGEST_READ].split()))[:_LONGEST_KEPT]),
        socket=sys.intern(escape(parsed.socket)),
        by_api=by_api,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _parse(reason: str, message: str) -> Rejection | None:
    if reason == "UnexpectedAdmissionError":
        framed = _FRAME.search(message)
        return _cause(_SUFFIX.sub("", framed[1].strip())) if framed else None
    if not reason.startswith(_OUT_OF) or not is_device(resource := reason.removeprefix(_OUT_OF)):
        return None
    if (counts := _NO_ROOM.search(message)) is None:
        return _refused(RejectionKind.OTHER, resource)
    requested, used, capacity = map(int, counts.groups())
    refused = RejectionKind.INSUFFICIENT if capacity else RejectionKind.NO_CAPACITY
    return _refused(refused, resource, requested=requested, available=max(0, capacity - used))


def _cause(cause: str) -> Rejection | None:
    for refused, pattern in _CAUSES:
        if found := pattern.search(cause):
            named = found.groupdict()
            if refused is RejectionKind.PLUGIN_GONE:
                resource = named.get("resource") or _group(_WORD.match(found[0]))
                return _refused(refused, resource, socket=_group(_SOCKET.search(cause)))
            requested, available = (
                int(named[name]) if name in named else None for name in ("requested", "available")
            )
            return _refused(
                refused, named.get("resource", ""), requested=requested, available=available
            )
    return None


def _group(found: re.Match[str] | None) -> str:
    return next(filter(None, found.groups()), "") if found else ""


def _rejected_at(
    metadata: Object, status: Object, started: datetime | None
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
    if written is None or (start is not None and abs(written - start) <= STATUS_DELAY):
        return start, False
    return written, True
