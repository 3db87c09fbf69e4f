"""`hack/soak`: everyday changes on the real node beside one daemon, which must report only what was provoked.

Rollouts, restarts of the kubelet and docker, drains, removals of the Node object, failing pods and CronJobs on the
cluster of hack/cluster. Exit codes: 0 nothing else was reported; 1 something was, or a step failed; 2 wrong usage.
"""

import argparse
import itertools
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from tests.bench.measure import write_section
from tests.e2e.agent import Daemon, Nodeleak
from tests.e2e.node import Cluster, Pods, eventually
from tests.stress.everyday import STEPS, Node, Step

_OPTIONS: Final = ("--interval=3s", "--grace=0s")
"""Sharper than the defaults: five times as many snapshots, and no minimum age that hides a wrong verdict."""
_AFTERWARDS: Final = 600.0
"""Seconds to wait for the findings of a step that has restored the node, which are not those of the next one."""
_REST: Final = 45.0
"""Seconds of rest after a step: longer than --confirm-after, so that its last state is judged too."""


@dataclass(frozen=True, slots=True)
class Done:
    """One step that was run to its end."""

    minutes: float
    reported: tuple[str, ...]
    """Confirmed findings, `detector: subject`."""
    wrong: tuple[str, ...]
    """Those that the step does not provoke, and those that did not close."""
    unavailable: tuple[str, ...]
    """Sources that were unavailable for a while."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="hack/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=45, help="begin no step after this time (45)")
    parser.add_argument("--write", action="store_true", help="write the result to docs/figures.md")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, _leave)
    done: defaultdict[str, list[Done]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        for step, result in _run(Path(directory), given.minutes * 60):
            done[step.name].append(result)
            print(f"{step.name}: {result.minutes} min, {'; '.join(result.reported) or 'nothing reported'}", flush=True)
            for text in result.wrong:
                print(f"  NOT PROVOKED: {text}", flush=True)
    section = "\n".join(_section(done))
    print(section)
    if given.write:
        write_section(section)
    return int(any(result.wrong for results in done.values() for result in results))


def _leave(_signal: int, _frame: object) -> NoReturn:
    sys.exit(128 + signal.SIGTERM)


def _section(done: Mapping[str, Sequence[Done]]) -> Iterator[str]:
    yield from ("## False alarms", "", "Everyday changes on one node of Kubernetes 1.20.2 with docker and kubenet, and")
    yield f"what a daemon with `{' '.join(_OPTIONS)}` reported (`hack/soak --write`)."
    yield from ("", "| step | runs | minutes | reported | unexpected | sources unavailable for a while |")
    yield "|---|---|---|---|---|---|"
    for name, results in done.items():
        cells = (
            name,
            len(results),
            f"{sum(result.minutes for result in results):.0f}",
            _names(text.partition(":")[0] for result in results for text in result.reported),
            sum(len(result.wrong) for result in results),
            _names(text for result in results for text in result.unavailable),
        )
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(set(names))) or "none"


def _run(directory: Path, seconds: float) -> Iterator[tuple[Step, Done]]:
    """Run steps in turn until the time is over; yield what each one caused."""
    cluster = Cluster.up()
    pods = Pods(cluster)
    pods.clear()
    logs = directory / "logs"
    logs.mkdir()
    node = Node(cluster, pods, Nodeleak(cluster, logs), directory)
    deadline = time.monotonic() + seconds
    with node.nodeleak.running(*_OPTIONS) as daemon:
        for step in itertools.cycle(STEPS):
            if time.monotonic() > deadline:
                return
            yield step, _run_step(step, node, daemon)


def _run_step(step: Step, node: Node, daemon: Daemon) -> Done:
    seen, began = len(daemon.lines()), time.monotonic()
    step.change(node)
    node.cluster.start()
    time.sleep(_REST)
    still_open = _wait_until_closed(daemon, 60)
    node.pods.clear()
    lines = daemon.lines()[seen:]
    minutes = round((time.monotonic() - began) / 60, 1)
    step.afterwards(node)
    _wait_until_closed(daemon, _AFTERWARDS)
    opened = [line for line in lines if line["event"] == "finding.opened"]
    unprovoked = [
        f"{line['detector']} ({line['severity']}): {line['text']}" for line in opened if _is_wrong(line, step)
    ]
    return Done(
        minutes,
        reported=tuple(f"{line['detector']}: {line['subject']}" for line in opened),
        wrong=(*unprovoked, *still_open),
        unavailable=tuple(line["source"] for line in lines if line["event"] == "source.unavailable"),
    )


def _is_wrong(line: dict[str, Any], step: Step) -> bool:
    return line["detector"] not in step.provokes and line["severity"] != "info"


def _wait_until_closed(daemon: Daemon, seconds: float) -> list[str]:
    """Wait for so long until no finding is left; return those that are."""

    def nothing_found() -> None:
        assert not _findings(daemon)

    try:
        eventually(nothing_found, seconds)
    except AssertionError:
        return _findings(daemon)
    return []


def _findings(daemon: Daemon) -> list[str]:
    findings = daemon.report().findings
    return [f"{found['detector']}: {found['subject']}" for found in findings if found["severity"] != "info"]


if __name__ == "__main__":
    sys.exit(main())
