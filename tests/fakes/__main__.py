"""Serve a fake node until standard input ends: `python -m tests.fakes ROOT PODS CIDR LEAST MOST`.

A healthy node with PODS pods of LEAST to MOST bytes each, in a new directory ROOT. Prints the API server's URL.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.fakes.apiserver import apiserver
from tests.fakes.engine import engine
from tests.fakes.host import build, write_kubeconfig
from tests.fakes.nodes import healthy

root, pods, cidr, least, most = sys.argv[1:]
node = healthy(datetime.now(UTC), int(pods), cidr)
host = build(Path(root), node)
with engine(host.docker_socket, node), apiserver(node, (int(least), int(most))) as url:
    write_kubeconfig(host, url)
    print(url, flush=True)
    sys.stdin.read()
