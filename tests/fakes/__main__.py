"""Stand-ins in a process of their own, until its standard input ends: `python -m standins ROOT PODS CIDR LEAST MOST`.

A healthy node of PODS pods, each of LEAST to MOST bytes, in a new directory ROOT. It stands in for nothing itself.
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
