"""Serve a fake node until standard input ends.

`python -m tests.fakes ROOT PODS CIDR LEAST MOST RUNTIME [NAME=NUMBER …]`: a healthy node with PODS pods of
LEAST to MOST bytes each, in a new directory ROOT. RUNTIME: such as `docker://19.3.15`. NAME: a field of `FakeNode`,
such as `evicted`.
Prints the API server's URL.
"""

import sys
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.fakes import cri
from tests.fakes.apiserver import apiserver
from tests.fakes.engine import engine
from tests.fakes.grpc_server import FakeGrpcServer
from tests.fakes.host import Host, build, write_kubeconfig
from tests.fakes.nodes import FakeNode, healthy

_NETWORK = "cbr0"  # Of a node without docker


def _runtime(host: Host, node: FakeNode) -> AbstractContextManager[Any]:
    if node.uses_docker:
        return engine(host.docker_socket, node)
    ipam = {"type": "host-local", "ranges": [[{"subnet": str(node.cidr)}]]}
    networks = cri.cniconfig({"type": "bridge", "ipam": ipam}, name=node.network)
    return FakeGrpcServer(host.containerd_socket, cri.of_node(node, {"cniconfig": networks}).answer)


root, pods, cidr, least, most, runtime, *more = sys.argv[1:]
numbers: dict[str, Any] = {
    name: int(number) for name, _, number in (one.partition("=") for one in more)
}
node = replace(healthy(datetime.now(UTC), int(pods), cidr), runtime=runtime, **numbers)
if not node.uses_docker:
    node = replace(node, network=_NETWORK)
host = build(Path(root), node)
with _runtime(host, node), apiserver(node, (int(least), int(most)), host.account) as url:
    write_kubeconfig(host, url)
    print(url, flush=True)
    sys.stdin.read()
