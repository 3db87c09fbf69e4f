"""The nodes of the section `fleet`: what their hosts and runtimes have, and what the API server has of them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Network
from typing import Any, Final

from tests.fakes import apiserver
from tests.fakes.nodes import FakeNode, healthy
from tests.fakes.runtime import NETWORK

PODS: Final = 30
MOST_PODS: Final = 110
_FEW_PODS: Final = 2
"""On a node without an agent."""
_LARGE: Final = 20
"""One node with an agent in so many has the most pods."""
_POD_BYTES: Final = 6_000
_IMAGES: Final = 50
"""In a Node's status: as many as a kubelet reports."""
_RUNTIME: Final = "containerd://1.7.24"


def fake_nodes(count: int, agents: int) -> list[FakeNode]:
    """Return the content of all nodes: those with agents first."""
    subnets = IPv4Network("10.64.0.0/10").subnets(new_prefix=24)
    now = datetime.now(UTC)

    def node(number: int) -> FakeNode:
        pods = _FEW_PODS
        if number < agents:
            pods = PODS if number % _LARGE else MOST_PODS
        model = healthy(now, pods, str(next(subnets)))
        running = tuple(
            replace(sandbox, namespace="default", pod=f"web-{number:05}-{index:05}")
            for index, sandbox in enumerate(model.running)
        )
        name = f"worker-{number:05}"
        return replace(model, name=name, running=running, runtime=_RUNTIME, network=NETWORK)

    return [node(number) for number in range(count)]


def objects(nodes: Sequence[FakeNode]) -> Iterator[tuple[str, dict[str, Any]]]:
    digest = "sha256:" + "0123456789abcdef" * 4
    images = [
        {"names": [f"registry.example/app-{number}@{digest}"], "sizeBytes": 50_000_000}
        for number in range(_IMAGES)
    ]
    for node in nodes:
        item = apiserver.node_object(node)
        item["metadata"]["uid"] = node.name
        item["status"] |= {"phase": "Running", "images": images}
        yield f"minions/{node.name}", _stored(item)
        size = _POD_BYTES if len(node.running) > _FEW_PODS else 0
        for sandbox in node.running:
            pod = apiserver.pod_object(node, sandbox, size)
            yield f"pods/default/{sandbox.pod}", _stored(pod)


def _stored(item: dict[str, Any]) -> dict[str, Any]:
    """Return an object as etcd has it."""
    kept = {key: value for key, value in item["metadata"].items() if key != "resourceVersion"}
    return item | {"metadata": kept}


def changing(nodes: Sequence[FakeNode]) -> tuple[list[str], list[str]]:
    """Return the paths of pods and Nodes, so that neighbors in the list belong to different nodes."""
    pods = zip(*(node.running for node in nodes), strict=False)
    names = [sandbox.pod for one_of_each in pods for sandbox in one_of_each]
    return (
        [f"/api/v1/namespaces/default/pods/{name}" for name in names],
        [f"/api/v1/nodes/{node.name}" for node in nodes],
    )
