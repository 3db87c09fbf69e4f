"""Writes what kubelets report, at a steady rate: `python -m tests.scale.updates PORT CERTIFICATE PODS NODES NODE...`

PODS and NODES: patches a second of the status of a pod and of a Node, each of a random one, in the given cluster.
"""

import json
import random
import signal
import ssl
import sys
import threading
import time
from datetime import UTC, datetime
from http.client import HTTPSConnection
from typing import Final

from tests.scale.control_plane import ADMIN
from tests.scale.objects import PODS_PER_NODE, pod_name

_LATE: Final = 1.0
"""Seconds."""


def patch(connection: HTTPSConnection, path: str, condition: dict[str, str]) -> None:
    body = json.dumps({"status": {"conditions": [condition]}})
    kind = "application/strategic-merge-patch+json"
    connection.request("PATCH", path, body, {"Authorization": f"Bearer {ADMIN}", "Content-Type": kind})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != 200:
        raise OSError(f"{path}: {answer.status} {content[:300]!r}")


def update(connection: HTTPSConnection, nodes: list[str], *, pod: bool) -> None:
    now, node = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), random.choice(nodes)
    if pod:
        namespace, name = pod_name(node, random.randrange(PODS_PER_NODE))
        path, field = f"/api/v1/namespaces/{namespace}/pods/{name}/status", "lastTransitionTime"
    else:
        path, field = f"/api/v1/nodes/{node}/status", "lastHeartbeatTime"
    # With a number, so that no patch is without a change.
    reason = f"Update{random.randrange(10**9)}"
    patch(connection, path, {"type": "Ready", "status": "True", "reason": reason, field: now})


def repeat(port: int, certificate: str, rate: float, nodes: list[str], *, pod: bool) -> None:
    """Update at this rate. What a late answer kept from being sent is left out: later seconds are like any others."""
    context = ssl.create_default_context(cafile=certificate)
    connection = HTTPSConnection("127.0.0.1", port, timeout=60, context=context)
    due = time.monotonic()
    while True:
        due = max(due + 1 / rate, time.monotonic() - _LATE)
        time.sleep(max(0.0, due - time.monotonic()))
        try:
            update(connection, nodes, pod=pod)
        except OSError as error:
            print(f"updates: {error}", file=sys.stderr, flush=True)
            connection.close()
            time.sleep(1)


def main(port: int, certificate: str, rates: tuple[float, float], nodes: list[str]) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    for rate, pod in zip(rates, (True, False), strict=True):
        arguments = (port, certificate, rate, nodes)
        threading.Thread(target=repeat, args=arguments, kwargs={"pod": pod}, daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], (float(sys.argv[3]), float(sys.argv[4])), sys.argv[5:])
