"""Serve a fake node until standard input ends.

`python -m tests.fakes ROOT PODS CIDR LEAST MOST RUNTIME [NAME=NUMBER …]`: a healthy node with PODS pods of
LEAST to MOST bytes each, in a new directory ROOT. RUNTIME: such as `docker://19.3.15`. NAME: a field of `FakeNode`,
such as `evicted`.
Prints the API server's URL.
"""

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.fakes.apiserver import apiserver
from tests.fakes.host import build, write_kubeconfig
from tests.fakes.nodes import healthy
from tests.fakes.runtime import NETWORK, runtime_of

root, pods, cidr, least, most, runtime, *more = sys.argv[1:]
numbers: dict[str, Any] = {
    name: int(number) for name, _, number in (one.partition("=") for one in more)
}
node = replace(healthy(datetime.now(UTC), int(pods), cidr), runtime=runtime, **numbers)
if not node.uses_docker:
    node = replace(node, network=NETWORK)
host = build(Path(root), node)
with runtime_of(host, node), apiserver(node, (int(least), int(most)), host.account) as url:
    write_kubeconfig(host, url)
    print(url, flush=True)
    sys.stdin.read()
