"""`python -m tests.stress --runtime=containerd`: exit with 1 if an address was released wrongly."""

import argparse
import json
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.containerd.failure import CannotRun
from tests.containerd.packages import VERSIONS
from tests.stress.containerd import commands
from tests.stress.containerd.run import ContainerdRun, Options, run_stress
from tests.stress.stopwatch import quantile

SELECTED_BY: Final = "--runtime=containerd"
_ABOUT: Final = """
Stress-test a cleaner on real containerd of Debian, in namespaces of its own: make and remove sandboxes by CRI with a
slowed host-local, kill containerd and its plugins, delete records, write reservations by hand, run the cleaner at the
same time, and check that no address is taken from a sandbox or from a network namespace that is still there, none is
held twice, and every leak is reclaimed in the end.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the stress test and return the exit code."""
    options = _parse(arguments)
    print(f"stress: containerd {options.version}, {options.seconds:g} s, seed {options.seed}", flush=True)
    try:
        finished = run_stress(options)
    except KeyboardInterrupt:
        print("stress: interrupted; everything was cleaned up", file=sys.stderr)
        return 128 + signal.SIGINT
    except CannotRun as error:
        print(f"stress: DID NOT RUN: it needs {error}", file=sys.stderr)
        return 1
    document = _document(finished)
    if options.report:
        options.report.write_text(json.dumps(document, indent=1) + "\n")
    print(*_table(document), sep="\n")
    for violation in finished.ledger.violations()[:20]:
        print(violation.line(finished.ledger.began))
    for failure in finished.state.failures:
        print(f"stress: {failure}", file=sys.stderr)
    failed = document["violations"] or document["failures"]
    print("FAILED" if failed else "no violations")
    return 1 if failed else 0


def _parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog=f"python -m tests.stress {SELECTED_BY}", description=_ABOUT)
    add = parser.add_argument
    add("--version", choices=VERSIONS, default="1.7", help="containerd's version (1.7)")
    add("--cleaner", choices=commands.NAMES, default="nodeleak", help="the cleaner that is run in a loop (nodeleak)")
    add("--seconds", type=float, default=60.0, help="duration of the churn (60)")
    add("--workers", type=int, default=10, help="concurrent sandboxes (10)")
    add("--addresses", type=int, default=12, help="size of the address range (12)")
    add("--lose", type=float, default=3.0, help="percentage of sandboxes whose records are deleted (3)")
    add("--seed", type=int, default=secrets.randbits(32), help="random seed (default: a new one for each run)")
    add("--reclaim", type=float, default=60.0, help="seconds for the cleaner after the churn (60)")
    add("--report", type=Path, metavar="FILE", help="write the result as JSON")
    return Options(**vars(parser.parse_args(arguments)))


def _document(finished: ContainerdRun) -> dict[str, Any]:
    counts, ledger = finished.ledger.counts(), finished.ledger
    lost, forged = finished.outages.lost, finished.forger.forged
    lifetimes = sorted(ledger.reclaim_seconds())
    cleaner = finished.cleaner
    return {
        "containerd": finished.node.packages.version(),
        "seed": finished.options.seed,
        "seconds": finished.seconds,
        "allocations": counts.allocations,
        "exhausted": counts.exhausted,
        "interrupted": finished.sandboxes.interrupted,
        "kills": {"containerd": finished.outages.kills, "plugins": finished.plugin_killer.killed},
        "leaked": {
            "all": counts.leaked, "record deleted": lost, "by hand": forged, "killed": counts.leaked - lost - forged
        },
        "reclaimed": counts.reclaimed,
        "namespaces_left_behind": finished.outages.left_behind,
        "leak_seconds": {"p50": quantile(lifetimes, 0.5), "most": lifetimes[-1] if lifetimes else 0.0},
        "cleaner": cleaner and {
            "name": cleaner.command.name,
            "runs": len(cleaner.run_seconds),
            "codes": {str(code): count for code, count in sorted(cleaner.codes.items())},
            "last_errors": {str(code): text for code, text in sorted(cleaner.last_errors.items())},
            "verdicts": dict(cleaner.verdicts.most_common()),
        },
        "failures": list(finished.state.failures),
        "violations": [asdict(one) | {"at": one.at - ledger.began} for one in ledger.violations()],
    }  # fmt: skip


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    leaked, kills, cleaner = result["leaked"], result["kills"], result["cleaner"]
    by_kind = ", ".join(f"{count} {kind}" for kind, count in leaked.items() if kind != "all")
    lifetimes, left = result["leak_seconds"], result["namespaces_left_behind"]
    yield f"{'containerd':18}{result['containerd']}; {result['seconds']:.0f} s of churn"
    yield f"{'allocations':18}{result['allocations']}; the range was exhausted {result['exhausted']} times"
    yield (
        f"{'killed':18}containerd {kills['containerd']} times, plugins {kills['plugins']} times; "
        f"{result['interrupted']} creations failed"
    )
    yield f"{'leaked':18}{leaked['all']} ({by_kind}), reclaimed {result['reclaimed']}"
    yield f"{'leak lifetime':18}{lifetimes['p50']:.1f} s (p50), {lifetimes['most']:.1f} s (max)"
    yield f"{'namespaces':18}{left} left behind by containerd, and deleted after the churn"
    if cleaner:
        results = f"{cleaner['runs']} runs, codes {cleaner['codes']}, {cleaner['verdicts']}"
        yield f"{'cleaner':18}{cleaner['name']}: {results}"
        yield from (f"{'':18}{code}: {text[-300:]}" for code, text in cleaner["last_errors"].items())
    yield f"{'violations':18}{len(result['violations'])}"
