"""`python -m tests.scale`: what thousands of agents cost a real API server; --write updates docs/scale.md."""

import argparse
import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

from tests.scale import control_plane, page, session, written

_ABOUT: Final = """
Measure what agents cost a real kube-apiserver, and what as many kubelets cost it, for each number of nodes. Each takes
about 13 minutes. Needs the binaries of hack/cluster build; it neither uses nor disturbs the cluster of hack/cluster.
"""


def main() -> int:
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _leave)
    if options.nodes and (missing := control_plane.missing()):
        print(f"scale: DID NOT RUN: missing {', '.join(missing)}: run hack/cluster build", file=sys.stderr)
        return 1
    for number, nodes in enumerate(options.nodes):
        # In alternating order, because the machine may become busier or idle.
        order = () if options.only_restart else ("none", "agents", "kubelets")[:: 1 if number % 2 == 0 else -1]
        plan = session.Plan(nodes, order, spread=max(20.0, nodes / 50), steady=options.steady)
        measured = session.measure(plan, options.log, restart=options.restart)
        _keep(measured)
    if options.write:
        page.DOCUMENT.write_text(page.document(page.read()))
    return 0


def _keep(measured: dict[str, Any]) -> None:
    """Keep one session of each size, the last one; what it did not measure is that of the one before."""
    kept = {one["nodes"]: one for one in page.read()["sessions"]}
    before = kept.pop(measured["nodes"], None)
    if before and not measured["arms"]:
        measured = before | {"restart": measured["restart"]}
    elif before and not measured["restart"]:
        measured |= {"restart": before["restart"]}
    others = kept.values()
    sessions = sorted([*others, measured], key=lambda one: int(one["nodes"]))
    page.RECORD.write_text(json.dumps({"written": asdict(written.measure()), "sessions": sessions}) + "\n")


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.scale", description=_ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "nodes", nargs="*", type=int, help="numbers of nodes, such as 500 1000 2000; none: measure nothing"
    )
    parser.add_argument("--write", action="store_true", help="write docs/scale.md from all sizes that were measured")
    parser.add_argument("--steady", type=float, default=120, help="seconds of the steady state (120)")
    restarts = parser.add_mutually_exclusive_group()
    restarts.add_argument("--no-restart", dest="restart", action="store_false", help="do not restart the API server")
    restarts.add_argument("--only-restart", action="store_true", help="only restart it, and measure no costs")
    parser.add_argument("--log", type=Path, default=Path("/dev/null"), help="receives the messages of the clients")
    return parser


if __name__ == "__main__":
    sys.exit(main())
