"""The pods of this node, as the API server knows them."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from agent.model.snapshot import Pod
from agent.sources.api import Query

PATH = "/api/v1/pods"


def query(node: str) -> Query:
    # RBAC cannot say "of this node only"; the selector can, and the server sends nothing else.
    return (("fieldSelector", f"spec.nodeName={node}"),)


def parse(item: Mapping[str, Any]) -> Pod:
    """Take from a pod what is needed; raises KeyError, TypeError, ValueError or AttributeError if it is none."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    ips = [ip["ip"] for ip in status.get("podIPs") or () if ip.get("ip")]
    # Servers before 1.16 send `podIP` alone.
    if not ips and status.get("podIP"):
        ips = [status["podIP"]]
    phase = status.get("phase") or ""
    if not isinstance(phase, str):
        raise TypeError(f"phase {phase!r}")
    return Pod(
        name=f"{metadata['namespace']}/{metadata['name']}",
        uid=str(metadata["uid"]),
        phase=phase,
        host_network=bool(spec.get("hostNetwork")),
        deleting=bool(metadata.get("deletionTimestamp")),
        ips=tuple(str(ip_address(ip)) for ip in ips),
    )
