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
from agent.sources.json_tree import subobject, text_field
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
"""The annotation by which the kubelet leaves attaching to the controller."""

_RELEVANT_TAINTS: Final = frozenset({UNINITIALIZED, TO_BE_DELETED, DELETION_CANDIDATE})
_EPOCH_SECONDS: Final = re.compile("[0-9]{1,11}")
"""As the autoscaler writes a time; others write `true`."""


def own_node(name: str, label: str = "") -> Resource[Node]:
    """Return how to list one Node.

    `label`: `KEY=VALUE`, of which the Node says whether it has it; empty: none.
    """
    selector = ("fieldSelector", f"metadata.name={name}")
    return Resource("node", NODES_PATH, (selector,), partial(parse_node, label=label))


def parse_node(item: Object, label: str = "") -> Node:
    """Return a Node; raises KeyError, TypeError or AttributeError if it is none.

    `label`: see `own_node`.
    """
    metadata = item["metadata"]
    annotations = subobject(metadata, "annotations")
    key, _, value = label.partition("=")
    has_label = bool(label) and subobject(metadata, "labels").get(key) == value

    spec = subobject(item, "spec")
    # Servers before 1.16 send only `podCIDR`.
    pod_cidrs = spec.get("podCIDRs") or filter(None, [spec.get("podCIDR")])

    status = subobject(item, "status")
    info = subobject(status, "nodeInfo")
    pressure = condition(status, ADDRESS_PRESSURE)
    ready = condition(status, "Ready")
    is_ready = ready.get("status") == "True"

    return Node(
        name=str(metadata["name"]),
        pod_cidrs=tuple(map(str, pod_cidrs)),
        max_pods=_max_pods(status),
        devices=tuple(_devices(status)),
        address_pressure=sys.intern(str(pressure.get("status", ""))),
        uid=text_field(metadata, "uid"),
        created=moment(metadata.get("creationTimestamp")),
        provider_id=escape(text_field(spec, "providerID")),
        taints=tuple(_taints(spec)),
        unschedulable=spec.get("unschedulable") is True,
        ready=is_ready,
        not_ready="" if is_ready else escape(text_field(ready, "message")),
        controller_attach=annotations.get(_CONTROLLER_ATTACH) == "true",
        volumes_in_use=_volumes_in_use(status),
        volumes_attached=_volumes_attached(status),
        runtime=text_field(info, "containerRuntimeVersion"),
        kubelet=str(info.get("kubeletVersion", "")),
        labels=(label,) if has_label else (),
        has_machine=_MACHINE in annotations,
    )


def _max_pods(status: Object) -> int | None:
    pods = str(subobject(status, "allocatable").get("pods"))
    return count(pods) if pods.isdecimal() else None


def _volumes_in_use(status: Object) -> tuple[str, ...]:
    names = status.get("volumesInUse")
    return sorted_names(map(str, names)) if isinstance(names, list) else ()


def _volumes_attached(status: Object) -> tuple[str, ...]:
    volumes = objects(status.get("volumesAttached"))
    return sorted_names(str(volume["name"]) for volume in volumes if "name" in volume)


def _devices(status: Object) -> Iterator[NodeDevices]:
    """Yield the extended resources of the node, by name; none whose quantity is malformed."""
    capacity = subobject(status, "capacity")
    allocatable = subobject(status, "allocatable")

    for resource in sorted_names(filter(is_device, (*capacity, *allocatable))):
        total = count(capacity.get(resource, 0))
        usable = count(allocatable.get(resource, 0))
        if total is not None and usable is not None:
            yield NodeDevices(resource, total, usable)


def _taints(spec: Object) -> Iterator[Taint]:
    """Yield the taints that tell something about the node's registration or removal."""
    for taint in objects(spec.get("taints")):
        if str(taint.get("key")) not in _RELEVANT_TAINTS:
            continue
        value = str(taint.get("value"))
        at = None
        if _EPOCH_SECONDS.fullmatch(value):
            at = datetime.fromtimestamp(int(value), UTC)
        yield Taint(taint["key"], at)
