"""The effect of cleanup on starting pods: the duration of host-local's ADD with and without the daemon.

Real docker and real host-local under `python -m tests.stress --compare`: alternating slices of one run, with and
without the daemon. Two workers create, leak and remove sandboxes. The daemon syncs every second and releases without a
grace period. host-local uses its own locks. The 99th percentile of ADD is sensitive to other load: check the load
average above.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.bench.measure import Figure
from tests.bench.surroundings import ROOT

_SECONDS: Final = 120
_ADD: Final = 1.1
_HELD: Final = 0.002
_DAEMON: Final = (
    "run --cleanup=auto --interval=1s --listen=127.0.0.1:0 --log-format=json --grace=0s --confirm-after=0s --settle=0s "
    "--cleanup-network=auto --max-share=100% --max-per-sync=1000 --max-per-hour=1000000"
)


def figures(bin_: Path) -> Iterator[Figure]:
    report = _stress(bin_)
    if report is None:
        yield Figure("not measured: the stress test needs root, docker (hack/cluster start docker) and host-local", "-")
        return
    counts, ratio, locks = report["counts"], report["ratio"], report["daemons"][0]["lock"]
    for which in ("p50", "p99"):
        slower = ratio[which]
        what = f"ADD, {which}: with the daemon / without it"
        yield Figure(what, f"{slower:.2f}x", f"at most {_ADD:g}x", slower <= _ADD)
    for what, lock in locks.items():
        most, measured = lock["within_seconds"], f"within {lock['within_seconds'] * 1000:g} ms"
        limit = (f"at most {_HELD * 1000:g} ms", most <= _HELD) if "held" in what else ("", True)
        yield Figure(f"{what}: 99 % of {lock['count']}", measured, *limit)
    yield Figure(
        "allocations; leaks; leaks reclaimed", f"{counts['allocations']}; {counts['leaked']}; {counts['reclaimed']}"
    )
    wrong = len(report["violations"])
    yield Figure("addresses taken from their holder, held twice, or never reclaimed", str(wrong), "0", wrong == 0)


def _stress(bin_: Path) -> Any:
    with tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as directory:
        file = Path(directory) / "report.json"
        daemon = f"--daemon=exec {bin_ / 'nodeleak'} {_DAEMON}"
        load = ("--workers=2", f"--seconds={_SECONDS}", "--compare", f"--report={file}")
        subprocess.run([sys.executable, "-m", "tests.stress", *load, daemon], cwd=ROOT, check=False, stdout=sys.stderr)
        return json.loads(file.read_text()) if file.exists() else None
