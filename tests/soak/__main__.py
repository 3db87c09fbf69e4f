"""`python -m tests.soak`: run everyday changes on the real node and exit with 1 if anything unprovoked was reported."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

from tests.soak import plot, record, resources
from tests.soak.run import OPTIONS, run
from tests.soak.steps import STEPS

_DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "soak.md"
_PLOT: Final = _DOCUMENT.with_suffix(".svg")
_RECORD: Final = Path(__file__).with_name("record.jsonl")
_ABOUT: Final = """
Run rollouts, restarts of the kubelet and docker, drains, removals of the Node object, failing pods and CronJobs on the
cluster of hack/cluster, beside a nodeleak daemon, and check that it reports only what was provoked, and that its
memory, threads and descriptors do not grow. It continues after the last step of the run before.

Exit codes: 0 nothing else was reported; 1 something was, something grows, or a step failed; 2 wrong usage.
Requires root and hack/cluster.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run steps until the time is over, and return the exit code."""
    given = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _leave)
    before = record.read(given.record)
    finished = []
    given.record.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        for done in run(Path(directory), len(before), given.minutes * 60) if given.minutes else ():
            record.append(given.record, done)
            finished.append(done)
            print(f"{done.step}: {done.minutes} min, {'; '.join(done.reported) or 'nothing reported'}", flush=True)
            for text in (*done.unprovoked, *done.still_open):
                print(f"  NOT PROVOKED: {text}", flush=True)
    grown = [text for run in resources.runs(record.all_samples(finished)) for text in resources.grown(run)]
    for text in grown:
        print(f"  GROWS: {text}", flush=True)
    if given.write:
        everything = record.read(given.record)
        _DOCUMENT.write_text(record.document(everything, _surroundings()))
        if samples := record.all_samples(everything):
            _PLOT.write_text(plot.svg(samples))
    return int(bool(grown) or any(done.wrong for done in finished))


def _surroundings() -> str:
    return (
        "One node of Kubernetes 1.20.2 with docker and kubenet (`hack/cluster`). The daemon ran with "
        f"`{' '.join(OPTIONS)}`: more snapshots than by default, and no grace period that could hide a false alarm. "
        "Five runs are not counted, because the test itself had left behind the problem that was reported: leaks that "
        "it did not release, and a device plugin that it had removed."
    )


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hack/soak",
        description=_ABOUT,
        epilog="Steps: " + "; ".join(one.name for one in STEPS),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=45, help="begin no step after this time (45; 0: none)")
    parser.add_argument(
        "--record",
        type=Path,
        default=_RECORD,
        help="what was done so far (tests/soak/record.jsonl); remove it to start over",
    )
    parser.add_argument("--write", action="store_true", help="write docs/soak.md from the record")
    return parser


if __name__ == "__main__":
    sys.exit(main())
