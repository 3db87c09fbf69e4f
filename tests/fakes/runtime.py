"""The fake runtime of a fake node, at its socket."""

from contextlib import AbstractContextManager
from typing import Any, Final

from tests.fakes import cri
from tests.fakes.engine import engine
from tests.fakes.grpc_server import FakeGrpcServer
from tests.fakes.host import Host
from tests.fakes.nodes import FakeNode

NETWORK: Final = "cbr0"
"""Of a node without docker."""


def runtime_of(host: Host, node: FakeNode) -> AbstractContextManager[Any]:
    """Serve the containers of a node during the block."""
    if node.uses_docker:
        return engine(host.docker_socket, node)
    ipam = {"type": "host-local", "ranges": [[{"subnet": str(node.cidr)}]]}
    networks = cri.cniconfig({"type": "bridge", "ipam": ipam}, name=node.network)
    return FakeGrpcServer(host.containerd_socket, cri.of_node(node, {"cniconfig": networks}).answer)
