"""The node's own Node object, as the API server knows it; an empty reading: there is none of its name."""

from collections.abc import Mapping
from typing import Any

from agent.model.snapshot import Node
from agent.sources.api import Query

PATH = "/api/v1/nodes"


def query(node: str) -> Query:
    return (("fieldSelector", f"metadata.name={node}"),)


def parse(item: Mapping[str, Any]) -> Node:
    """Take from a node what is needed; raises KeyError, TypeError or AttributeError where it is no node."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    # Servers before 1.16 send `podCIDR` alone.
    cidrs = spec.get("podCIDRs") or ([spec["podCIDR"]] if spec.get("podCIDR") else [])
    pods = (status.get("allocatable") or {}).get("pods")
    return Node(
        name=str(item["metadata"]["name"]),
        pod_cidrs=tuple(map(str, cidrs)),
        max_pods=int(pods) if pods is not None and str(pods).isdecimal() else None,
    )
