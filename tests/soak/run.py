"""Runs steps beside one daemon and compares what it reports with what they provoke."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from tests.e2e.agent import Daemon, Nodeleak
from tests.e2e.node import Cluster, Pods, eventually
from tests.soak.record import Done
from tests.soak.resources import Meter
from tests.soak.steps import STEPS, Node, Step

OPTIONS: Final = ("--interval=3s", "--grace=0s")
"""Sharper than the defaults: five times as many snapshots, and no minimum age that hides a wrong verdict."""
_AFTERWARDS: Final = 600.0
"""Seconds to wait for the findings of a step that has restored the node, which are not those of the next one."""
_REST: Final = 45.0
"""Seconds of rest after a step: longer than --confirm-after, so that its last state is judged too."""


def run(directory: Path, begin: int, seconds: float) -> Iterator[Done]:
    """Run steps in turn, beginning with number `begin`, until the time is over; yield what each one caused."""
    cluster = Cluster.up()
    pods = Pods(cluster)
    pods.clear()
    logs = directory / "logs"
    logs.mkdir(exist_ok=True)
    node = Node(cluster, pods, Nodeleak(cluster, logs), directory)
    deadline = time.monotonic() + seconds
    with (
        node.nodeleak.running(*OPTIONS) as daemon,
        Meter(daemon.process.pid, node.nodeleak.state_dir, daemon.log).running() as meter,
    ):
        number = begin
        while time.monotonic() < deadline:
            done = _run_step(STEPS[number % len(STEPS)], node, daemon)
            yield replace(done, samples=meter.taken())
            number += 1


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
    return Done(
        step=step.name,
        minutes=minutes,
        reported=_unique(f"{line['detector']}: {line['subject']}" for line in opened),
        unprovoked=_unique(_describe(line) for line in opened if not _is_expected(line, step)),
        still_open=still_open,
        unavailable=_unique(line["source"] for line in lines if line["event"] == "source.unavailable"),
    )


def _is_expected(line: dict[str, Any], step: Step) -> bool:
    return line["detector"] in step.provokes or line["severity"] == "info"


def _wait_until_closed(daemon: Daemon, seconds: float) -> tuple[str, ...]:
    """Wait for so long until no finding is left; return those that are."""

    try:
        eventually(lambda: _nothing_found(daemon), seconds)
    except AssertionError:
        return _findings(daemon)
    return ()


def _nothing_found(daemon: Daemon) -> None:
    assert not _findings(daemon)


def _findings(daemon: Daemon) -> tuple[str, ...]:
    findings = daemon.report().findings
    return _unique(f"{one['detector']}: {one['subject']}" for one in findings if one["severity"] != "info")


def _describe(line: dict[str, Any]) -> str:
    return f"{line['detector']} ({line['severity']}): {line['text']}"


def _unique(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
