"""Parses the pods of this node, as the API server has them."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from operator import index

from agent.model.snapshot import Pod, PortMapping
from agent.sources.json_tree import subobject
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
from agent.sources.kube.volume_names import unique_volume_names


def pods_of(node: str) -> Resource[Pod]:
    """Return how to list the pods of a node."""
    # RBAC cannot restrict the list to this node; with the selector the server sends nothing else.
    selector = ("fieldSelector", f"spec.nodeName={node}")
    return Resource("pods", "/api/v1/pods", (selector,), parse_pod)


def parse_pod(item: Object) -> Pod:
    """Return a pod; raises KeyError, TypeError, ValueError or AttributeError if it is none."""
    pod = _pod(item)
    if pod.live:
        return pod
    # A node can have thousands of terminated pods, and only a live pod owns addresses or waits for
    # volumes.
    return replace(pod, ips=(), claims=(), volumes=())


def _pod(item: Object) -> Pod:
    metadata = item["metadata"]
    name = str(metadata["name"])
    deletion = metadata.get("deletionTimestamp")

    spec = subobject(item, "spec")
    host_network = bool(spec.get("hostNetwork"))
    volumes = objects(spec.get("volumes"))
    wants, wants_in_init = _wants(spec)

    status = subobject(item, "status")
    ips = _ips(status)
    phase = _phase(status)
    # The status has the last two runs of each container.
    started = min(filter(None, _starts(status)), default=None)
    # A pod in the node's network has an address before it has a sandbox.
    has_begun = bool(ips) and not (host_network and phase == "Pending")

    return Pod(
        name=f"{metadata['namespace']}/{name}",
        uid=_uid(metadata),
        phase=phase,
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
        scheduled=None if has_begun else _since(status, "PodScheduled", "True"),
        unready=None if has_begun else _since(status, "Ready", "False"),
        claims=sorted_names(_claims(name, volumes)),
        volumes=sorted_names(_attached(volumes)),
        static=_is_mirror(metadata),
        host_ports=() if host_network else tuple(dict.fromkeys(_host_ports(spec))),
        waiting=any("waiting" in state for state in _states(status, "state")),
        dra_resources=sorted_names(_dra_resources(status)),
        has_resource_claims=bool(spec.get("resourceClaims") or _extended_claim(status)),
    )


def _phase(status: Object) -> str:
    phase = status.get("phase") or ""
    if not isinstance(phase, str):
        raise TypeError(f"phase {phase!r}")
    return sys.intern(phase)


def _uid(metadata: Object) -> str:
    """Return the uid that the kubelet uses: a static pod's own, not that of its mirror."""
    own = None
    if _is_mirror(metadata):
        own = metadata["annotations"].get("kubernetes.io/config.hash")
    return str(own or metadata["uid"])


def _is_mirror(metadata: Object) -> bool:
    return "kubernetes.io/config.mirror" in subobject(metadata, "annotations")


def _ips(status: Object) -> tuple[str, ...]:
    """Return the pod's addresses in their canonical form; raises ValueError for a malformed one."""
    ips = [entry["ip"] for entry in status.get("podIPs") or () if entry.get("ip")]
    if not ips and status.get("podIP"):
        ips = [status["podIP"]]  # servers before 1.16 send only this one
    return tuple(str(ip_address(str(ip))) for ip in ips)


def _wants(spec: Object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the device resources of all containers, and those of init containers.

    A sidecar is no such init container: it runs on like other containers.
    """
    init_containers = objects(spec.get("initContainers"))
    plain = [entry for entry in init_containers if entry.get("restartPolicy") != "Always"]
    containers = (*init_containers, *objects(spec.get("containers")))

    return sorted_names(_device_resources(containers)), sorted_names(_device_resources(plain))


def _device_resources(containers: Iterable[Object]) -> Iterator[str]:
    """Yield the device resources that these containers request."""
    for container in containers:
        resources = subobject(container, "resources")
        for kind in ("limits", "requests"):
            for name, amount in subobject(resources, kind).items():
                if is_device(name) and count(amount) != 0:
                    yield name


def _extended_claim(status: Object) -> Object:
    """Return the claim that the scheduler made for extended resources; empty: it made none."""
    claim = status.get("extendedResourceClaimStatus")
    return claim if isinstance(claim, Mapping) else {}


def _dra_resources(status: Object) -> Iterator[str]:
    """Yield the extended resources that DRA serves (KEP-5004)."""
    for mapping in objects(_extended_claim(status).get("requestMappings")):
        yield str(mapping.get("resourceName"))


def _attached(volumes: Iterable[Object]) -> Iterator[str]:
    """Yield what the node's status may call those of these volumes that are attached to it."""
    for volume in volumes:
        yield from unique_volume_names(volume, str(volume.get("name")))


def _claims(pod: str, volumes: Iterable[Object]) -> Iterator[str]:
    """Yield the names of the PersistentVolumeClaims that a pod of this name uses."""
    for volume in volumes:
        claim = volume.get("persistentVolumeClaim")
        if isinstance(claim, Mapping):
            yield str(claim.get("claimName"))
        elif volume.get("ephemeral"):
            yield f"{pod}-{volume.get('name')}"


def _host_ports(spec: Object) -> Iterator[PortMapping]:
    """Yield the ports of the node that the containers ask for; raises TypeError."""
    for containers in ("initContainers", "containers"):
        for container in objects(spec.get(containers)):
            for port in objects(container.get("ports")):
                if host_port := port.get("hostPort"):
                    protocol = str(port.get("protocol") or "TCP")
                    yield PortMapping(index(host_port), protocol.lower())


def _since(status: Object, kind: str, value: str) -> datetime | None:
    """Return since when a condition has had this value; None: it has another, or none."""
    found = condition(status, kind)
    if found.get("status") != value:
        return None
    return moment(found.get("lastTransitionTime"))


def _states(status: Object, key: str) -> Iterator[Object]:
    """Yield the `state` or the `lastState` of each container. `key`: which of them."""
    for containers in ("initContainerStatuses", "containerStatuses"):
        for container in status.get(containers) or ():
            yield subobject(container, key)


def _starts(status: Object) -> Iterator[datetime | None]:
    """Yield when each run of a container started; None: its time is missing or malformed."""
    for state in (*_states(status, "state"), *_states(status, "lastState")):
        for run in ("running", "terminated"):
            yield moment(subobject(state, run).get("startedAt"))


def _controller(metadata: Object) -> str:
    """Return `KIND/NAME` of what would replace the pod; empty: nothing would."""
    for owner in metadata.get("ownerReferences") or ():
        # The node owns its mirror pods, but replaces none: a rejected pod stays rejected.
        if owner.get("controller") is True and owner["kind"] != "Node":
            return f"{owner['kind']}/{owner['name']}"
    return ""
