"""The node's own Node object, as the API server knows it; an empty reading: there is none of its name."""

import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from agent.model.registration import DELETION_CANDIDATE, TO_BE_DELETED, UNINITIALIZED, Taint
from agent.model.snapshot import ADDRESS_PRESSURE, Node, NodeDevices
from agent.model.text import escape
from agent.sources.kube.client import Query
from agent.sources.kube.fields import count, is_device, mappings, moment, shared

_CONTROLLER_ATTACH = "volumes.kubernetes.io/controller-managed-attach-detach"

PATH = "/api/v1/nodes"


def query(node: str) -> Query:
    return (("fieldSelector", f"metadata.name={node}"),)


def parse(item: Mapping[str, Any]) -> Node:
    """Take from a node what is needed; raises KeyError, TypeError or AttributeError where it is no node."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    # Servers before 1.16 send `podCIDR` alone.
    cidrs = spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else [])
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    pods, in_use = allocatable.get("pods"), status.get("volumesInUse")
    return Node(
        name=str(item["metadata"]["name"]),
        pod_cidrs=tuple(map(str, cidrs)),
        max_pods=int(pods) if pods is not None and str(pods).isdecimal() else None,
        devices=tuple(_devices(capacity, allocatable)),
        address_pressure=_condition(status, ADDRESS_PRESSURE),
        uid=str(item["metadata"].get("uid") or ""),
        created=moment(item["metadata"].get("creationTimestamp")),
        provider_id=escape(str(spec.get("providerID") or "")),
        taints=tuple(_taints(spec)),
        ready=_condition(status, "Ready") == "True",
        controller_attach=(item["metadata"].get("annotations") or {}).get(_CONTROLLER_ATTACH) == "true",
        volumes_in_use=shared(map(str, in_use if isinstance(in_use, list) else ())),
        volumes_attached=shared(str(one["name"]) for one in mappings(status.get("volumesAttached")) if "name" in one),
        runtime=str((status.get("nodeInfo") or {}).get("containerRuntimeVersion") or ""),
    )


def _condition(status: Mapping[str, Any], kind: str) -> str:
    told = (str(one.get("status")) for one in mappings(status.get("conditions")) if one.get("type") == kind)
    return sys.intern(next(told, ""))


def _devices(capacity: Mapping[str, Any], allocatable: Mapping[str, Any]) -> Iterator[NodeDevices]:
    for resource in shared(name for name in (*capacity, *allocatable) if is_device(name)):
        has, offers = count(capacity.get(resource, 0)), count(allocatable.get(resource, 0))
        if has is not None and offers is not None:
            yield NodeDevices(resource, has, offers)


_TELLING: Final = frozenset({UNINITIALIZED, TO_BE_DELETED, DELETION_CANDIDATE})
_LATEST: Final = 10**11
"""Seconds since the epoch: the year 5138. No autoscaler sets a later time, and no clock can be trusted that does."""


def _taints(spec: Mapping[str, Any]) -> Iterator[Taint]:
    for taint in mappings(spec.get("taints")):
        if str(taint.get("key")) in _TELLING:
            yield Taint(taint["key"], _seconds(taint.get("value")))


def _seconds(value: Any) -> datetime | None:
    """Read a time as the autoscaler writes it; others put `true` there."""
    text = str(value)
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(_LATEST)) or int(text) >= _LATEST:
        return None
    return datetime.fromtimestamp(int(text), UTC)
