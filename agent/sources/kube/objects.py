"""Parses the pods of this node, and its Node object, as the API server has them."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address
from operator import index
from typing import Final

from agent.model.registration import DELETION_CANDIDATE, TO_BE_DELETED, UNINITIALIZED, Taint
from agent.model.snapshot import ADDRESS_PRESSURE, Node, NodeDevices, Pod, PortMapping
from agent.model.text import escape
from agent.sources.kube.api import Resource
from agent.sources.kube.fields import (
    Object,
    condition,
    count,
    is_device,
    moment,
    objects,
    sorted_names,
)
from agent.sources.kube.rejections import parse_rejection


def pods_of(node: str) -> Resource[Pod]:
    # RBAC cannot restrict the list to this node; with the selector the server sends nothing else.
    selector = ("fieldSelector", f"spec.nodeName={node}")
    return Resource("pods", "/api/v1/pods", (selector,), parse_pod)


def parse_pod(item: Object) -> Pod:
    """Return a pod; raises KeyError, TypeError, ValueError or AttributeError if it is none."""
    metadata = item["metadata"]
    spec = item.get("spec") or {}
    status = item.get("status") or {}
    phase = status.get("phase") or ""
    if not isinstance(phase, str):
        raise TypeError(f"phase {phase!r}")

    name = str(metadata["name"])
    deletion = metadata.get("deletionTimestamp")
    host_network = bool(spec.get("hostNetwork"))
    ips = _ips(status)
    volumes = objects(spec.get("volumes"))
    attached = (unique_volume_name(volume, str(volume.get("name"))) for volume in volumes)
    # The status has the last two runs of each container.
    started = min(filter(None, _starts(status)), default=None)
    wants_in_init = sorted_names(_device_resources(spec, "initContainers"))
    wants = sorted_names((*wants_in_init, *_device_resources(spec, "containers")))

    pod = Pod(
        name=f"{metadata['namespace']}/{name}",
        uid=_uid(metadata),
        phase=sys.intern(phase),
        host_network=host_network,
        deleting=bool(deletion),
        ips=ips,
        created=moment(metadata.get("creationTimestamp")),
        started=started,
        wants=wants,
        wants_in_init=wants_in_init,
        rejection=parse_rejection(metadata, status, wants, started),
        controller=sys.intern(_controller(metadata)),
        deletion=moment(deletion),
        finalizers=sorted_names(map(str, metadata.get("finalizers") or ())),
        # Only needed while the pod waits, and a time for every pod needs memory on every node.
        scheduled=None if ips else _scheduled(status),
        claims=sorted_names(_claims(name, volumes)),
        volumes=sorted_names(filter(None, attached)),
        static=_is_mirror(metadata),
        host_ports=() if host_network else tuple(dict.fromkeys(_host_ports(spec))),
        waiting=any("waiting" in state for state in _states(status, "state")),
    )
    if pod.live:
        return pod
    # A node can have thousands of terminated pods, and only a live pod owns addresses or waits for
    # volumes.
    return replace(pod, ips=(), claims=(), volumes=())


def _uid(metadata: Object) -> str:
    """Return the uid that the kubelet uses: a static pod's own, not that of its mirror."""
    own = None
    if _is_mirror(metadata):
        own = metadata["annotations"].get("kubernetes.io/config.hash")
    return str(own or metadata["uid"])


def _is_mirror(metadata: Object) -> bool:
    return "kubernetes.io/config.mirror" in (metadata.get("annotations") or {})


def _ips(status: Object) -> tuple[str, ...]:
    ips = [entry["ip"] for entry in status.get("podIPs") or () if entry.get("ip")]
    if not ips and status.get("podIP"):
        ips = [status["podIP"]]  # servers before 1.16 send only this one
    return tuple(str(ip_address(str(ip))) for ip in ips)


def _device_resources(spec: Object, containers: str) -> Iterator[str]:
    """Yield the device resources that these containers request."""
    for container in spec.get(containers) or ():
        resources = container.get("resources") or {}
        for kind in ("limits", "requests"):
            for name, amount in (resources.get(kind) or {}).items():
                if is_device(name) and count(amount) != 0:
                    yield name


def _claims(pod: str, volumes: Iterable[Object]) -> Iterator[str]:
    """Yield the names of the PersistentVolumeClaims that a pod of this name uses."""
    for volume in volumes:
        claim = volume.get("persistentVolumeClaim")
        if isinstance(claim, Mapping):
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
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("status") != "True":
        return None
    return moment(scheduled.get("lastTransitionTime"))


def _states(status: Object, key: str) -> Iterator[Object]:
    """Yield the `state` or the `lastState` of each container."""
    for containers in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(containers) or ():
            yield container.get(key) or {}


def _starts(status: Object) -> Iterator[datetime | None]:
    for state in (*_states(status, "state"), *_states(status, "lastState")):
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
"""How the node's status names a volume of each kind, by the fields of its source.

Other kinds (Fibre Channel) cannot be named from here. The kind `csi` of a pod has no handle: it is
never attached.
"""
_DEFAULTS: Final = {"lun": "0", "pool": "rbd"}
"""What Kubernetes takes for fields that are missing."""


def unique_volume_name(described: Object, name: str) -> str | None:
    """Return a volume's name in the node's status.

    None: it need not be attached, or is of an unknown kind. `name`: of the PersistentVolume, or of
    the volume in its pod.
    """
    for kind, pattern in _VOLUMES.items():
        source = described.get(kind)
        if isinstance(source, Mapping):
            fields = {**source, "object name": name}
            values = {field: value for field, value in fields.items() if value}
            try:
                return pattern.format_map(_DEFAULTS | values)
            except KeyError:
                return None
    return None


NODES_PATH: Final = "/api/v1/nodes"
_CONTROLLER_ATTACH: Final = "volumes.kubernetes.io/controller-managed-attach-detach"


def own_node(name: str) -> Resource[Node]:
    selector = ("fieldSelector", f"metadata.name={name}")
    return Resource("node", NODES_PATH, (selector,), parse_node)


def parse_node(item: Object) -> Node:
    """Return a Node; raises KeyError, TypeError or AttributeError if it is none."""
    metadata = item["metadata"]
    spec = item.get("spec") or {}
    status = item.get("status") or {}
    info = status.get("nodeInfo") or {}
    in_use = status.get("volumesInUse")
    ready = condition(status, "Ready")
    is_ready = ready.get("status") == "True"
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
        ready=is_ready,
        not_ready="" if is_ready else escape(str(ready.get("message") or "")),
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
    volumes = objects(status.get("volumesAttached"))
    return sorted_names(str(volume["name"]) for volume in volumes if "name" in volume)


def _devices(status: Object) -> Iterator[NodeDevices]:
    capacity = status.get("capacity") or {}
    allocatable = status.get("allocatable") or {}
    for resource in sorted_names(name for name in (*capacity, *allocatable) if is_device(name)):
        total = count(capacity.get(resource, 0))
        usable = count(allocatable.get(resource, 0))
        if total is not None and usable is not None:
            yield NodeDevices(resource, total, usable)


_RELEVANT_TAINTS: Final = frozenset({UNINITIALIZED, TO_BE_DELETED, DELETION_CANDIDATE})
_EPOCH_SECONDS: Final = re.compile("[0-9]{1,11}")
"""As the autoscaler writes a time; others write `true`."""


def _taints(spec: Object) -> Iterator[Taint]:
    for taint in objects(spec.get("taints")):
        if str(taint.get("key")) in _RELEVANT_TAINTS:
            value = str(taint.get("value"))
            at = None
            if _EPOCH_SECONDS.fullmatch(value):
                at = datetime.fromtimestamp(int(value), UTC)
            yield Taint(taint["key"], at)
