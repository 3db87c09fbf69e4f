"""The node's own Node object, as the API server knows it; an empty reading: there is none of its name."""

from collections.abc import Iterator, Mapping
from typing import Any

from agent.model.snapshot import Node, NodeDevices
from agent.sources.api import Query
from agent.sources.notation import count, is_device, shared

PATH = "/api/v1/nodes"


def query(node: str) -> Query:
    return (("fieldSelector", f"metadata.name={node}"),)


def parse(item: Mapping[str, Any]) -> Node:
    """Take from a node what is needed; raises KeyError, TypeError or AttributeError where it is no node."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    # Servers before 1.16 send `podCIDR` alone.
    cidrs = spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else [])
    capacity, allocatable = status.get("capacity") or {}, status.get("allocatable") or {}
    pods = allocatable.get("pods")
    return Node(
        name=str(item["metadata"]["name"]),
        pod_cidrs=tuple(map(str, cidrs)),
        max_pods=int(pods) if pods is not None and str(pods).isdecimal() else None,
        devices=tuple(_devices(capacity, allocatable)),
        runtime=str((status.get("nodeInfo") or {}).get("containerRuntimeVersion") or ""),
    )


def _devices(capacity: Mapping[str, Any], allocatable: Mapping[str, Any]) -> Iterator[NodeDevices]:
    for resource in shared(name for name in (*capacity, *allocatable) if is_device(name)):
        has, offers = count(capacity.get(resource, 0)), count(allocatable.get(resource, 0))
        if has is not None and offers is not None:
            yield NodeDevices(resource, has, offers)
