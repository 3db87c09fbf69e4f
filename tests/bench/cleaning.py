"""What cleaning costs pods that start: the time of host-local's ADD beside the daemon that cleans, and without it.

Real docker and real host-local under `python -m tests.stress --compare`: slices of one run, with the daemon and
without, in which two workers make, leak and remove sandboxes; the daemon looks every second, and releases without any
grace. The lock is host-local's own.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.bench.measure import Figure

_SECONDS: Final = 120
_ADD: Final = 1.1
_HELD: Final = 0.002
_DAEMON: Final = (
    "run --cleanup=auto --interval=1s --listen=127.0.0.1:0 --log-format=json --grace=0s --confirm-after=0s --settle=0s "
    "--max-share=100% --max-per-sync=1000 --max-per-hour=1000000"
)


def figures(bin_: Path) -> Iterator[Figure]:
    told = _torture(bin_)
    if told is None:
        yield Figure("not measured: the torture needs root, docker (hack/cluster start docker) and host-local", "-")
        return
    counts, ratio, locks = told["counts"], told["ratio"], told["daemons"][0]["lock"]
    for which in ("p50", "p99"):
        slower = ratio[which]
        what = f"ADD, {which}, beside the daemon against without it"
        yield Figure(what, f"{slower:.2f}x", f"at most {_ADD:g}x", slower <= _ADD)
    for what, lock in locks.items():
        most, measured = lock["within_seconds"], f"within {lock['within_seconds'] * 1000:g} ms"
        limit = (f"at most {_HELD * 1000:g} ms", most <= _HELD) if "held" in what else ("", True)
        yield Figure(f"{what}: 99 % of {lock['count']}", measured, *limit)
    yield Figure(
        "allocations; leaks; leaks reclaimed", f"{counts['allocations']}; {counts['leaked']}; {counts['reclaimed']}"
    )
    wrong = len(told["violations"])
    yield Figure("addresses taken from a holder, held twice, or lost for good", str(wrong), "0", wrong == 0)


def _torture(bin_: Path) -> Any:
    with tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as directory:
        report = Path(directory) / "report.json"
        daemon = f"--daemon=exec {bin_ / 'nodeleak'} {_DAEMON}"
        load = ("--workers=2", f"--seconds={_SECONDS}", "--compare", f"--report={report}")
        subprocess.run([sys.executable, "-m", "tests.stress", *load, daemon], check=False, stdout=sys.stderr)
        return json.loads(report.read_text()) if report.exists() else None
