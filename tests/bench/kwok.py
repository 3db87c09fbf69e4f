"""kwok: manages thousands of Nodes and their pods without kubelets. It is built from its pinned Go module."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests import go_tool, processes
from tests.control_plane import ControlPlane, free_ports

MODULE: Final = Path(__file__).with_name("kwok-module")
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases?limit=1"
_LONGEST_START: Final = 600.0
_RENEWAL: Final = 3600
"""Seconds between two renewals of a Lease, and two reports of a Node's status: longer than what is measured lasts. Of a
kubelet they are 10 and 300. What thousands of them write would hide on two cores what is measured."""

_STAGE: Final = f"""\
apiVersion: kwok.x-k8s.io/v1alpha1
kind: Stage
metadata: {{name: heartbeat}}
spec:
  resourceRef: {{apiGroup: v1, kind: Node}}
  selector: {{matchExpressions: [{{key: .status.phase, operator: In, values: [Running]}}]}}
  delay: {{durationMilliseconds: {_RENEWAL * 1000}}}
  next:
    statusTemplate: |
      conditions: [{{type: Ready, status: "True", lastHeartbeatTime: {{{{ Now | Quote }}}}}}]
"""


@contextmanager
def running(plane: ControlPlane, nodes: int) -> Iterator[None]:
    """Manage all Nodes during the block, which begins once each has a Lease."""
    stage = plane.directory / "kwok.yaml"
    stage.write_text(_STAGE)
    command = [
        *(go_tool.build(MODULE), f"--kubeconfig={plane.kubeconfig}", f"--config={stage}"),
        *("--manage-all-nodes=true", f"--node-lease-duration-seconds={_RENEWAL * 4}"),
        f"--server-address=127.0.0.1:{free_ports(1)[0]}",
    ]
    log = plane.directory / "kwok.log"
    alone = processes.environment(HOME=str(plane.directory))  # it reads a configuration from there
    with processes.running(command, log, alone) as child:
        for _ in processes.until(time.monotonic() + _LONGEST_START, every=1.0):
            if child.poll() is not None:
                break
            listed = json.loads(plane.request("GET", _LEASES))
            leases = len(listed["items"]) + listed["metadata"].get("remainingItemCount", 0)
            if leases >= nodes:
                yield
                return
        raise OSError(f"kwok does not renew {nodes} Leases:\n{log.read_text()[-2000:]}")
