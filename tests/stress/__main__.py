"""`python -m tests.stress`: run the stress test and exit with 1 if an address was released wrongly."""

import argparse
import json
import secrets
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final, NoReturn

import pytest

from tests.stress import docker, whole_node
from tests.stress.ledger import Ledger
from tests.stress.run import Context, Options, RunState, StressRun

_ABOUT: Final = """
Stress-test cleaners of leaked addresses: churn one host-local store, leak addresses and kill plugins, runtimes and
kubelets, run cleaners at the same time, and check that no address is taken from its holder, none is held twice, every
leak is reclaimed in the end, and nothing else is left in the store.
"""
_MORE: Final = """
Without --profile, what is stressed is the machine's docker and host-local, with a store of their own. With it, it is a
whole node of hack/cluster, which the test needs for itself, and the daemon on that node is its only cleaner.
COMMAND is a shell command or one of: nodeleak; one-liner (the widely copied shell one-liner, as a cleaner only); none;
restore (`nodeleak restore --last --apply` during the churn, often killed).
A command gets STRESS_STORE, STRESS_CACHE, STRESS_STATE and DOCKER_HOST, and the same values in nodeleak's variables.

Exit codes: 0 no violations; 1 violations, or a cleaner or daemon failed; 2 wrong usage.
Requires root and host-local, and for docker the image of hack/cluster (hack/cluster start docker).
"""
MOST_ADDRESSES: Final = 240


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the stress test and return the exit code."""
    options = _parse(arguments)
    signal.signal(signal.SIGTERM, _leave)
    print(
        f"stress: {options.profile or 'docker'}, {options.seconds:g} s, seed {options.seed}",
        flush=True,
    )
    context = Context(options, Random(options.seed), RunState(), Ledger())  # noqa: S311 (chance, not secrecy)
    try:
        with (
            whole_node.prepared(context) if options.profile else docker.prepared(context) as runtime
        ):
            finished = StressRun(context, runtime)
            finished.execute()
            document = _document(finished)
    except KeyboardInterrupt:
        print("stress: interrupted; everything was cleaned up", file=sys.stderr)
        return 128 + signal.SIGINT
    except pytest.skip.Exception as error:
        print(f"stress: DID NOT RUN: it needs {error}", file=sys.stderr)
        return 1
    except (OSError, *docker.BROKEN) as error:
        print(f"stress: {error}", file=sys.stderr)
        return 1
    if options.report:
        options.report.write_text(json.dumps(document, indent=1) + "\n")
    print(*_lines(document, finished), sep="\n")
    return 1 if document["violations"] or document["failures"] else 0


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _parse(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m tests.stress",
        description=_ABOUT,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--profile",
        choices=sorted(whole_node.RUNTIMES),
        default="",
        help="stress this node of hack/cluster",
    )
    add(
        "--cleaner",
        action="append",
        default=[],
        metavar="COMMAND",
        help="run it in a loop; may be repeated",
    )
    add(
        "--daemon",
        action="append",
        default=[],
        metavar="COMMAND",
        help="start it once, as a daemon; may be repeated",
    )
    add("--seconds", type=float, default=60.0, help="duration of the churn (60)")
    add("--workers", type=int, help="concurrent sandboxes or pods (8; node 10)")
    add(
        "--addresses",
        type=int,
        help=f"size of the address range, at most {MOST_ADDRESSES} (12; node 16)",
    )
    add(
        "--leak",
        type=float,
        default=15.0,
        metavar="PERCENT",
        help="docker: sandboxes that leak (15)",
    )
    add(
        "--kill",
        type=float,
        default=10.0,
        metavar="PERCENT",
        help="docker: sandboxes whose kubelet is killed (10)",
    )
    add(
        "--seed",
        type=int,
        default=secrets.randbits(32),
        help="random seed (default: a new one for each run)",
    )
    add(
        "--reclaim",
        type=float,
        metavar="SECONDS",
        help="time for the cleaners after the churn (30; node 720)",
    )
    add(
        "--release",
        type=float,
        metavar="SECONDS",
        help="node: remove a reservation in use by hand at this time",
    )
    add("--report", type=Path, metavar="FILE", help="write the result as JSON")
    given = parser.parse_args(arguments)
    if given.profile and (given.cleaner or given.daemon):
        parser.error(
            "--cleaner and --daemon are for docker: the node of --profile has its own daemon"
        )
    # On a node, a namespace that its runtime forgot may answer a probe, and the address is left alone
    # for ten minutes.
    workers, reclaim, addresses = (10, 720.0, 16) if given.profile else (8, 30.0, 12)
    given.workers, given.reclaim = given.workers or workers, given.reclaim or reclaim
    given.addresses = addresses if given.addresses is None else given.addresses
    most = 100 if given.profile else MOST_ADDRESSES
    if not 1 <= given.addresses <= most:
        parser.error(f"--addresses must be between 1 and {most}")
    return Options(**vars(given))


def _document(finished: StressRun) -> dict[str, Any]:
    """Return the complete result for programs."""
    ledger, lifetimes = finished.ledger, finished.ledger.reclaim_seconds()
    return {
        "runtime": finished.options.profile or "docker",
        "seed": finished.options.seed,
        "seconds": finished.seconds,
        "counts": ledger.counts(),
        "leak_seconds": {"p50": median(lifetimes or [0.0]), "most": max(lifetimes, default=0.0)},
        **finished.runtime.result(),
        "cleaners": [cleaner.result() for cleaner in finished.runtime.cleaners],
        "failures": list(finished.state.failures),
        "violations": [
            asdict(violation) | {"at": violation.at - ledger.began}
            for violation in ledger.violations()
        ],
    }


def _lines(document: Mapping[str, Any], finished: StressRun) -> Iterator[str]:
    failed = bool(document["violations"] or document["failures"])
    for name, value in document.items():
        if name not in {"violations", "failures", "cleaners", "add_seconds"}:
            yield f"{name:24}{json.dumps(value)}"
    for cleaner in document["cleaners"]:
        yield f"{'cleaner':24}{cleaner['name']}: exit codes {json.dumps(cleaner['codes'])}"
        if failed:
            yield json.dumps(cleaner, indent=1)
    yield from (
        violation.line(finished.ledger.began) for violation in finished.ledger.violations()[:20]
    )
    yield from (f"failure: {failure}" for failure in document["failures"])
    yield f"FAILED: {len(document['violations'])} violations" if failed else "no violations"


if __name__ == "__main__":
    sys.exit(main())
