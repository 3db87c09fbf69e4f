"""Parses the pods of this node, as the API server has them."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from operator import index
from typing import Any

from agent.model.snapshot import Pod, PortMapping
from agent.sources.kube import rejections, volume_names
from agent.sources.kube.client import Resource
from agent.sources.kube.fields import condition, count, is_device, moment, objects, sorted_names


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
    ips = tuple(str(ip_address(str(ip))) for ip in _ips(status))
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
        claims=sorted_names(_claims(str(metadata["name"]), spec)),
        volumes=sorted_names(_volumes(spec)),
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


def _ips(status: Mapping[str, Any]) -> list[str]:
    ips = [ip["ip"] for ip in status.get("podIPs") or () if ip.get("ip")]
    # Servers before 1.16 send only `podIP`.
    return ips or ([status["podIP"]] if status.get("podIP") else [])


def _wanted(spec: Mapping[str, Any], containers: str) -> Iterator[str]:
    for container in spec.get(containers) or ():
        resources = container.get("resources") or {}
        for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
            yield from (name for name, amount in amounts.items() if is_device(name) and count(amount) != 0)


def _volumes(spec: Mapping[str, Any]) -> Iterator[str]:
    for volume in objects(spec.get("volumes")):
        yield from filter(None, [volume_names.unique_name(volume, str(volume.get("name")))])


def _claims(pod: str, spec: Mapping[str, Any]) -> Iterator[str]:
    for volume in objects(spec.get("volumes")):
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
