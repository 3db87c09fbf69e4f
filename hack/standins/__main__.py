"""Stand-ins in a process of their own, until its standard input ends: `python -m standins ROOT PODS CIDR LEAST MOST`.

A healthy node of PODS pods, each of LEAST to MOST bytes, in a new directory ROOT. It stands in for nothing itself.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from standins.apiserver import apiserver
from standins.engine import engine
from standins.host import build, write_kubeconfig
from standins.nodes import healthy

root, pods, cidr, least, most = sys.argv[1:]
node = healthy(datetime.now(UTC), int(pods), cidr)
host = build(Path(root), node)
with engine(host.docker_socket, node), apiserver(node, (int(least), int(most))) as url:
    write_kubeconfig(host, url)
    print(url, flush=True)
    sys.stdin.read()
