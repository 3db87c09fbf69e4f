"""How long `kubectl nodeleak status` takes, and how many requests the API server gets: the figures of docs/kubectl.md.

usage: python -m tests.fleet.measure [NODES...]      default: 50 500

The kubectl is real, and the API server is a fake on this machine: each agent answers after 0.2 s.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.cluster import FakeCluster, Ran
from tests.fleet.kubectl import ROOT, status
from tests.processes import environment

_ANSWER = 0.2
"""Seconds. What an exec and the command take on a node."""
_KUBECONFIG = """\
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: us}}}}]
clusters: [{{name: here, cluster: {{server: "{url}"}}}}]
users: [{{name: us, user: {{token: none}}}}]
"""


def main(arguments: Sequence[str]) -> int:
    if {"-h", "--help"} & set(arguments):
        print((__doc__ or "").strip())
        return 0
    for count in map(int, arguments or ("50", "500")):
        print(measure(count), flush=True)
    return 0


def measure(count: int) -> str:
    names = [f"worker-{number}" for number in range(count)]
    cluster = FakeCluster(names, lambda node, _: Ran(json.dumps(status(node)), seconds=_ANSWER))
    with tempfile.TemporaryDirectory() as home, cluster.serve():
        (Path(home) / "config").write_text(_KUBECONFIG.format(url=cluster.url))
        env = environment(HOME=home, KUBECONFIG=f"{home}/config", PYTHONPATH=str(ROOT))
        command = [sys.executable, "-c", "import sys; from agent.fleet.command import main; sys.exit(main())", "status"]
        before, began = _cpu(), time.monotonic()
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        seconds, cpu = time.monotonic() - began, _cpu() - before
    requests = ", ".join(f"{number} {what}" for what, number in sorted(cluster.requests.items()))
    return (
        f"{count} agents: {seconds:.1f} s, {cpu:.1f} s of CPU for it and kubectl, at most {cluster.most} at once; "
        f"load average {os.getloadavg()[0]:.1f}\n  requests: {requests}\n  {done.stdout.splitlines()[0]}"
    )


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
