"""Parses the pods of this node, and its Node object, as the API server has them."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address
from operator import index
from typing import Any, Final

from agent.model.registration import DELETION_CANDIDATE, TO_BE_DELETED, UNINITIALIZED, Taint
from agent.model.snapshot import ADDRESS_PRESSURE, Node, NodeDevices, Pod, PortMapping
from agent.model.text import escape
from agent.sources.kube import rejections
from agent.sources.kube.client import Resource
from agent.sources.kube.fields import condition, count, is_device, moment, objects, sorted_names, unique_volume_name


def pods_of(node: str) -> Resource[Pod]:
    # RBAC cannot restrict the list to this node; with the selector the server sends nothing else.
    return Resource("pods", "/api/v1/pods", (("fieldSelector", f"spec.nodeName={node}"),), parse_pod)


def parse_pod(item: Mapping[str, Any]) -> Pod:
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
        rejection=rejections.read_rejection(metadata, status, wants, started),
        controller=sys.intern(_controller(metadata)),
        deletion=moment(metadata.get("deletionTimestamp")),
        finalizers=sorted_names(map(str, metadata.get("finalizers") or ())),
        # Only needed while the pod waits, and a time for every pod needs memory on every node.
        scheduled=None if ips else _scheduled(status),
        claims=sorted_names(_claims(str(metadata["name"]), volumes)),
        volumes=sorted_names(filter(None, attached)),
        static=_is_mirror(metadata),
        host_ports=() if spec.get("hostNetwork") else tuple(dict.fromkeys(_host_ports(spec))),
    )
    # A node can have thousands of terminated pods, and only a live pod owns addresses or waits for volumes.
    return pod if pod.live else replace(pod, ips=(), claims=(), volumes=())


def _uid(metadata: Mapping[str, Any]) -> str:
    """Return the uid that the kubelet uses: a static pod's own, not that of its mirror."""
    own = metadata["annotations"].get("kubernetes.io/config.hash") if _is_mirror(metadata) else None
    return str(own or metadata["uid"])


def _is_mirror(metadata: Mapping[str, Any]) -> bool:
    return "kubernetes.io/config.mirror" in (metadata.get("annotations") or {})


def _ips(status: Mapping[str, Any]) -> tuple[str, ...]:
    ips = [ip["ip"] for ip in status.get("podIPs") or () if ip.get("ip")]
    # Servers before 1.16 send only `podIP`.
    return tuple(str(ip_address(str(ip))) for ip in ips or filter(None, [status.get("podIP")]))


def _wanted(spec: Mapping[str, Any], containers: str) -> Iterator[str]:
    for container in spec.get(containers) or ():
        resources = container.get("resources") or {}
        for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
            yield from (name for name, amount in amounts.items() if is_device(name) and count(amount) != 0)


def _claims(pod: str, volumes: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for volume in volumes:
        if isinstance(claim := volume.get("persistentVolumeClaim"), Mapping):
            yield str(claim.get("claimName"))
        elif volume.get("ephemeral"):
            yield f"{pod}-{volume.get('name')}"


def _host_ports(spec: Mapping[str, Any]) -> Iterator[PortMapping]:
    for containers in ("initContainers", "containers"):
        for container in objects(spec.get(containers)):
            for port in objects(container.get("ports")):
                if host_port := port.get("hostPort"):
                    yield PortMapping(index(host_port), str(port.get("protocol") or "TCP").lower())


def _scheduled(status: Mapping[str, Any]) -> datetime | None:
    given = condition(status, "PodScheduled")
    return moment(given.get("lastTransitionTime")) if given.get("status") == "True" else None


def _starts(status: Mapping[str, Any]) -> Iterator[datetime | None]:
    for containers in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(containers) or ():
            for state in (container.get("state") or {}, container.get("lastState") or {}):
                for run in ("running", "terminated"):
                    yield moment((state.get(run) or {}).get("startedAt"))


def _controller(metadata: Mapping[str, Any]) -> str:
    for owner in metadata.get("ownerReferences") or ():
        # The node owns its mirror pods, but replaces none: a rejected pod stays rejected.
        if owner.get("controller") is True and owner["kind"] != "Node":
            return f"{owner['kind']}/{owner['name']}"
    return ""


NODES_PATH = "/api/v1/nodes"
_CONTROLLER_ATTACH = "volumes.kubernetes.io/controller-managed-attach-detach"


def own_node(name: str) -> Resource[Node]:
    return Resource("node", NODES_PATH, (("fieldSelector", f"metadata.name={name}"),), parse_node)


def parse_node(item: Mapping[str, Any]) -> Node:
    """Parse a Node; raises KeyError, TypeError or AttributeError if it is none."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    in_use = status.get("volumesInUse")
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
        runtime=str((status.get("nodeInfo") or {}).get("containerRuntimeVersion") or ""),
    )


def _max_pods(status: Mapping[str, Any]) -> int | None:
    pods = str((status.get("allocatable") or {}).get("pods"))
    return count(pods) if pods.isdecimal() else None


def _volumes_attached(status: Mapping[str, Any]) -> tuple[str, ...]:
    return sorted_names(str(volume["name"]) for volume in objects(status.get("volumesAttached")) if "name" in volume)


def _devices(status: Mapping[str, Any]) -> Iterator[NodeDevices]:
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    for resource in sorted_names(name for name in (*capacity, *allocatable) if is_device(name)):
        total, usable = count(capacity.get(resource, 0)), count(allocatable.get(resource, 0))
        if total is not None and usable is not None:
            yield NodeDevices(resource, total, usable)


_RELEVANT_TAINTS: Final = frozenset({UNINITIALIZED, TO_BE_DELETED, DELETION_CANDIDATE})
_SECONDS: Final = re.compile("[0-9]{1,11}")  # since the epoch, as the autoscaler writes a time; others write `true`


def _taints(spec: Mapping[str, Any]) -> Iterator[Taint]:
    for taint in objects(spec.get("taints")):
        if str(taint.get("key")) in _RELEVANT_TAINTS:
            written = str(taint.get("value"))
            at = datetime.fromtimestamp(int(written), UTC) if _SECONDS.fullmatch(written) else None
            yield Taint(taint["key"], at)
