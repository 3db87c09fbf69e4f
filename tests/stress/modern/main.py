"""`python -m tests.stress --profile=NAME`: exit with 1 if an address was released wrongly."""

import argparse
import json
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pytest

from tests.stress.modern.run import RUNTIMES, ModernRun, Options, run_stress

SELECTED_BY: Final = "--profile="
_ABOUT: Final = """
Stress-test the agent on a real node of today (hack/cluster --profile): create and delete pods, kill the runtime and the
kubelet with SIGKILL, leak addresses with the node's host-local, let `nodeleak run --cleanup=auto` clean without waiting
periods, and check with the kernel alone that no live process loses the reservation of its address, no address is in two
network namespaces, and every leak is reclaimed in the end. Needs the node for itself.
"""


def main(arguments: Sequence[str]) -> int:
    """Run the stress test and return the exit code."""
    options = _parse(arguments)
    print(f"stress: {options.profile}, {options.seconds:g} s, seed {options.seed}", flush=True)
    try:
        finished = run_stress(options)
    except KeyboardInterrupt:
        print("stress: interrupted", file=sys.stderr)
        return 130
    except pytest.skip.Exception as error:
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
    print("FAILED" if finished.failed else "no violations")
    return 1 if finished.failed else 0


def _parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m tests.stress --profile=NAME", description=_ABOUT)
    add = parser.add_argument
    add("--profile", choices=sorted(RUNTIMES), required=True, help="the node")
    add("--seconds", type=float, default=60.0, help="duration of the churn (60)")
    add("--pods", type=int, default=10, help="pods at a time (10)")
    add("--seed", type=int, default=secrets.randbits(32), help="random seed (default: a new one for each run)")
    add("--reclaim", type=float, default=240.0, help="seconds for runtime and agent after the churn (240)")
    add("--release", type=float, metavar="SECONDS", help="remove a reservation in use by hand at this time")
    add("--report", type=Path, metavar="FILE", help="write the result as JSON")
    return Options(**vars(parser.parse_args(arguments)))


def _document(finished: ModernRun) -> dict[str, Any]:
    counts, ledger = finished.ledger.counts(), finished.ledger
    return {
        "profile": finished.options.profile,
        "seed": finished.options.seed,
        "seconds": finished.seconds,
        "pods": {"created": finished.created, "deleted": finished.deleted},
        "seen_in_use": counts.allocations,
        "looks": finished.oracle.looks,
        "kills": dict(finished.kills),
        "planted": len(finished.planted),
        "reclaimed": finished.reclaimed,
        "containers_lost": finished.lost,
        "namespaces_left_behind": finished.left_behind,
        "agent": dict(finished.events.most_common()),
        "false_findings": sorted(finished.oracle.false_findings),
        "failures": list(finished.state.failures),
        "violations": [asdict(violation) | {"at": violation.at - ledger.began} for violation in ledger.violations()],
    }


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    pods = result["pods"]
    kills = ", ".join(f"{program} {times} times" for program, times in result["kills"].items())
    yield f"{'pods':18}{pods['created']} created, {pods['deleted']} deleted in {result['seconds']:.0f} s of churn"
    yield f"{'kernel':18}{result['looks']} looks, {result['seen_in_use']} addresses seen in use"
    yield f"{'killed':18}{kills or 'nothing'}"
    yield f"{'planted leaks':18}{result['planted']}, reclaimed {result['reclaimed']}"
    yield f"{'containers':18}{result['containers_lost']} that the runtime made and forgot, killed"
    yield f"{'namespaces':18}{result['namespaces_left_behind']} left behind by the runtime, and deleted after the churn"
    yield f"{'agent':18}{', '.join(f'{event} {count}' for event, count in result['agent'].items())}"
    yield f"{'false findings':18}{len(result['false_findings'])}"
    yield f"{'violations':18}{len(result['violations'])}"
