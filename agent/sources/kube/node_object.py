"""Parses the Node object of this node, as the API server has it."""

import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Final

from agent.model.registration import DELETION_CANDIDATE, TO_BE_DELETED, UNINITIALIZED, Taint
from agent.model.snapshot import ADDRESS_PRESSURE, Node, NodeDevices
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

NODES_PATH: Final = "/api/v1/nodes"
_MACHINE: Final = "cluster.x-k8s.io/machine"
"""The annotation with the name of the Machine, of Cluster API and of Rancher."""
_CONTROLLER_ATTACH: Final = "volumes.kubernetes.io/controller-managed-attach-detach"


def own_node(name: str, label: str = "") -> Resource[Node]:
    """`label`: `KEY=VALUE`, of which the Node says whether it has it."""
    selector = ("fieldSelector", f"metadata.name={name}")
    return Resource("node", NODES_PATH, (selector,), partial(parse_node, label=label))


def parse_node(item: Object, label: str = "") -> Node:
    """Return a Node; raises KeyError, TypeError or AttributeError if it is none."""
    metadata = item["metadata"]
    key, _, value = label.partition("=")
    has_label = bool(label) and (metadata.get("labels") or {}).get(key) == value
    annotations = metadata.get("annotations") or {}
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
        controller_attach=annotations.get(_CONTROLLER_ATTACH) == "true",
        volumes_in_use=sorted_names(map(str, in_use)) if isinstance(in_use, list) else (),
        volumes_attached=_volumes_attached(status),
        runtime=str(info.get("containerRuntimeVersion") or ""),
        kubelet=str(info.get("kubeletVersion", "")),
        labels=(label,) if has_label else (),
        has_machine=_MACHINE in annotations,
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
