"""`python -m tests.bench.inside BIN`: measure the daemon on the containerd of this node, and print it as JSON.

This runs in the namespaces of a node of `tests/containerd`, whose pods are those of the fake API server.
"""

import json
import re
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.bench import resident
from tests.bench.call_counter import counting
from tests.bench.surroundings import fake_node
from tests.containerd.node import SUBNET

_SOCKET = Path("/run/containerd/containerd.sock")
_COUNTED_SYNCS = 200
NODE_OPTIONS = ("--device-plugins-dir=off", "--kubelet-dir=off")


@dataclass(frozen=True, slots=True)
class Inside:
    """The daemon, measured as on docker; and in a second run, what it called and imported."""

    rss_mib: float
    peak_mib: float
    growth_mib: float
    cpu_ms_per_sync: float
    syncs: int
    counted_syncs: int
    calls: dict[str, int]
    """By method, in at least `counted_syncs` syncs."""
    imported: list[str]
    """The packages."""


def measure(bin_: Path, version: str) -> Inside:
    with (
        fake_node(resident.PODS, SUBNET, resident.POD_BYTES, f"containerd://{version}") as (host, _),
        tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as directory,
    ):
        options = [f"--kubeconfig={host.kubeconfig}", *NODE_OPTIONS]
        measured = resident.daemon(bin_, options)
        run_dir, log = Path(directory) / "run", Path(directory) / "log"
        (run_dir / "containerd").mkdir(parents=True)
        with counting(run_dir / "containerd/containerd.sock", _SOCKET) as proxy:
            through_proxy = [*options, f"--run-dir={run_dir}"]
            counted = resident.daemon(bin_, through_proxy, _COUNTED_SYNCS, log, PYTHONPROFILEIMPORTTIME="1")
        return Inside(
            measured.end.rss_mib,
            measured.end.peak_mib,
            measured.growth_mib,
            measured.cpu_ms_per_sync,
            measured.syncs,
            counted.syncs,
            proxy.calls,
            sorted(imported_packages(log.read_text())),
        )


def imported_packages(log: str) -> set[str]:
    """Return the packages in what Python writes of each import."""
    return set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\w+)", log, re.MULTILINE))


if __name__ == "__main__":
    print(json.dumps(asdict(measure(Path(sys.argv[1]), sys.argv[2]))))
