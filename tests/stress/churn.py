"""Healthy pods come and go on a node of today, beside a daemon and scans, which must report nothing.

Single pods, pods that are deleted before they have started, pods that end by themselves, and a Deployment that is
rolled out again and again. Exit codes: 0 nothing was reported; 1 something was; 2 wrong usage.
"""

import argparse
import os
import secrets
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from threading import Event
from typing import Any, Final

from tests.e2e.modern.node import ModernNode
from tests.e2e.node import deployment_of, eventually, pod_with
from tests.e2e.nodeleak import Daemon
from tests.stress.whole_node import RUNTIMES

_DAEMON: Final = ("--interval=1s", "--grace=0s", "--confirm-after=0s")
"""Sharper than the defaults: no minimum age hides a wrong verdict."""
_SCANS: Final = ((), ("--grace=0s",))
_PROGRESS: Final = 60.0
_REPLICAS: Final = 6
_MOST_AT_ONCE: Final = 6


class Churn:
    """The node, what happens to its pods, and what was reported meanwhile."""

    def __init__(self, node: ModernNode, seed: int) -> None:
        self._node, self._chance = node, Random(seed)  # noqa: S311 (chance, not secrecy)
        self.done: Counter[str] = Counter()
        self.reported: list[str] = []
        self.slow_starts = 0
        """Reports that pods have waited for minutes, which is true on a slow machine."""

    def run(self, daemon: Daemon, seconds: float) -> None:
        """Let pods come and go for so long, and take what `scan` and the daemon report."""
        over = Event()
        with ThreadPoolExecutor(1) as pool:
            looking = pool.submit(self._look, over)
            try:
                with self._deployment() as deployment:
                    self._come_and_go(deployment, daemon, looking, time.monotonic() + seconds)
            finally:
                over.set()
        looking.result()
        self._take("the daemon", daemon.events("finding.opened"))
        for network, count in daemon.metrics().leaks_confirmed.items():
            self.reported.append(f"the daemon confirmed {count:g} leaks in {network}")

    def _come_and_go(
        self, deployment: str, daemon: Daemon, looking: Future[None], deadline: float
    ) -> None:
        changes = (self._pods, self._never_started, self._completed, lambda: self._roll(deployment))
        next_progress = time.monotonic() + _PROGRESS
        while time.monotonic() < deadline and not looking.done():  # it goes on unless a scan fails
            self._chance.choice(changes)()
            if time.monotonic() > next_progress:
                next_progress += _PROGRESS
                print(f"{deadline - time.monotonic():6.0f} s left; {self.summary()}", flush=True)
            assert daemon.process.poll() is None, "the daemon has ended"

    def summary(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(self.done.items()))
        return f"{counts}; {self.slow_starts} slow starts, {len(self.reported)} reported"

    # What happens

    def _pods(self) -> None:
        names = self._node.ask_for(self._chance.randint(1, _MOST_AT_ONCE))
        self._node.ready(names)
        self._delete(names, "--grace-period=1")
        self.done["pods"] += len(names)

    def _never_started(self) -> None:
        names = self._node.ask_for(self._chance.randint(1, _MOST_AT_ONCE))
        time.sleep(self._chance.uniform(0, 3))
        self._delete(names, "--grace-period=1")
        self.done["pods deleted while they start"] += len(names)

    def _completed(self) -> None:
        pods = [self._ending_pod() for _ in range(self._chance.randint(1, _MOST_AT_ONCE))]
        self._node.cluster.apply(*pods)
        names = [pod["metadata"]["name"] for pod in pods]
        self._node.kubectl(
            "wait", "pods", *names, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=300s"
        )
        self._delete(names)
        self.done["pods that ended"] += len(names)

    def _ending_pod(self) -> dict[str, Any]:
        pod = pod_with(self._node.cluster, _name())
        pod["spec"]["restartPolicy"] = "Never"
        pod["spec"]["containers"][0]["command"] = ["true"]
        return pod

    def _roll(self, deployment: str) -> None:
        self._node.kubectl("rollout", "restart", f"deployment/{deployment}")
        self._node.kubectl("rollout", "status", f"deployment/{deployment}", "--timeout=300s")
        self.done["rollouts"] += 1

    def _delete(self, names: Sequence[str], *options: str) -> None:
        self._node.kubectl("delete", "pods", *names, *options, "--timeout=300s")

    @contextmanager
    def _deployment(self) -> Iterator[str]:
        deployment = deployment_of(pod_with(self._node.cluster, _name()))
        template = deployment["spec"]["template"]["spec"]
        template["nodeSelector"] = {"kubernetes.io/hostname": self._node.cluster.node}
        template["terminationGracePeriodSeconds"] = 1
        deployment["spec"]["replicas"] = _REPLICAS
        name: str = deployment["metadata"]["name"]
        self._node.cluster.apply(deployment)
        try:
            self._node.kubectl("rollout", "status", f"deployment/{name}", "--timeout=300s")
            yield name
        finally:
            self._node.kubectl("delete", "deployment", name, "--cascade=foreground")

    # What is reported

    def _look(self, over: Event) -> None:
        while not over.is_set():
            for options in _SCANS:
                report = self._node.scan(*options, codes=(0, 3, 4))
                self._take(f"scan {' '.join(options)}", report.findings)
                leaked = [ip for ip, state in report.states.items() if state == "leaked"]
                self.reported += [f"scan {' '.join(options)}: {ip} is leaked" for ip in leaked]
                self.done["scans"] += 1

    def _take(self, who: str, findings: Sequence[Mapping[str, Any]]) -> None:
        for found in findings:
            if found["detector"] == "waiting_pods" and found["severity"] != "critical":
                self.slow_starts += 1
                continue
            said = found.get("message") or found.get("text")
            self.reported.append(f"{who}: {found['detector']} ({found['severity']}): {said}")
            print(self.reported[-1], flush=True)


def _name() -> str:
    return f"e2e-churn-{secrets.token_hex(3)}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress.churn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--profile", choices=sorted(RUNTIMES), default="containerd")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long (3600)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    options = parser.parse_args()
    print(f"churn: {options.profile}, {options.seconds:g} s, seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="nodeleak-churn-") as home:
        logs = Path(home) / "logs"
        logs.mkdir()
        node = _cleared(options.profile, logs)
        churn = Churn(node, options.seed)
        with node.daemon(*_DAEMON) as daemon:
            churn.run(daemon, options.seconds)
            print(f"{daemon.syncs():.0f} syncs; {churn.summary()}")
    print(*churn.reported, sep="\n")
    return 1 if churn.reported else 0


def _cleared(profile: str, logs: Path) -> ModernNode:
    os.environ["CLUSTER_PROFILE"] = profile
    node = ModernNode.up(logs)
    node.clear()

    def nothing_found() -> None:
        report = node.scan(codes=(0, 3, 4))
        assert not report.findings, report.findings

    eventually(nothing_found)
    return node


if __name__ == "__main__":
    sys.exit(main())
