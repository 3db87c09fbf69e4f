"""Parses the Node object of the API server."""

import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from agent.model.registration import DELETION_CANDIDATE, TO_BE_DELETED, UNINITIALIZED, Taint
from agent.model.snapshot import ADDRESS_PRESSURE, Node, NodeDevices
from agent.model.text import escape
from agent.sources.kube.client import Resource
from agent.sources.kube.fields import condition, count, is_device, moment, objects, sorted_names

_CONTROLLER_ATTACH = "volumes.kubernetes.io/controller-managed-attach-detach"

NODES_PATH = "/api/v1/nodes"


def own_node(name: str) -> Resource[Node]:
    return Resource("node", NODES_PATH, (("fieldSelector", f"metadata.name={name}"),), parse_node)


def parse_node(item: Mapping[str, Any]) -> Node:
    """Parse a Node; raises KeyError, TypeError or AttributeError if it is none."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    return Node(
        name=str(metadata["name"]),
        pod_cidrs=tuple(_pod_cidrs(spec)),
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
        volumes_in_use=_volumes_in_use(status),
        volumes_attached=_volumes_attached(status),
        runtime=str((status.get("nodeInfo") or {}).get("containerRuntimeVersion") or ""),
    )


def _pod_cidrs(spec: Mapping[str, Any]) -> Iterator[str]:
    # Servers before 1.16 send only `podCIDR`.
    yield from map(str, spec.get("podCIDRs") or filter(None, [spec.get("podCIDR")]))


def _max_pods(status: Mapping[str, Any]) -> int | None:
    pods = str((status.get("allocatable") or {}).get("pods"))
    return count(pods) if pods.isdecimal() else None


def _volumes_in_use(status: Mapping[str, Any]) -> tuple[str, ...]:
    in_use = status.get("volumesInUse")
    return sorted_names(map(str, in_use)) if isinstance(in_use, list) else ()


def _volumes_attached(status: Mapping[str, Any]) -> tuple[str, ...]:
    return sorted_names(str(volume["name"]) for volume in objects(status.get("volumesAttached")) if "name" in volume)


def _devices(status: Mapping[str, Any]) -> Iterator[NodeDevices]:
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    for resource in sorted_names(name for name in (*capacity, *allocatable) if is_device(name)):
        total, usable = count(capacity.get(resource, 0)), count(allocatable.get(resource, 0))
        if total is not None and usable is not None:
            yield NodeDevices(resource, total, usable)


_RELEVANT_TAINTS: Final = frozenset({UNINITIALIZED, TO_BE_DELETED, DELETION_CANDIDATE})
_LATEST: Final = 10**11
"""Seconds since the epoch: the year 5138. No autoscaler sets a later time."""


def _taints(spec: Mapping[str, Any]) -> Iterator[Taint]:
    for taint in objects(spec.get("taints")):
        if str(taint.get("key")) in _RELEVANT_TAINTS:
            yield Taint(taint["key"], _seconds(taint.get("value")))


def _seconds(value: Any) -> datetime | None:
    """Parse a time as the autoscaler writes it; others write `true`."""
    text = str(value)
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(_LATEST)) or int(text) >= _LATEST:
        return None
    return datetime.fromtimestamp(int(text), UTC)
