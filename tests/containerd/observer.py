"""`python -m tests.containerd.observer SECONDS`: take snapshots of this node without pause, and judge each at once.

A reservation of a sandbox that is being made or removed has an owner in every one of them. Prints one JSON object:
`unlisted` is how many reservations belonged to sandboxes that CRI did not list yet.
"""

import json
import os
import sys
import time
from collections import Counter
from datetime import timedelta

from agent.app import loop
from agent.app.sources import for_command
from agent.checks import engine
from agent.config import load
from agent.model.assessment import State
from agent.model.report import Report

_OWNED = {State.IN_USE, State.NOT_READY}
_MOST = 5


def main(seconds: float) -> None:
    sources = for_command(load("scan", {}, os.environ)).snapshot
    states: Counter[str] = Counter()
    wrong: list[str] = []
    looks = unlisted = 0
    at_once = timedelta(0)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        snapshot = loop.snapshot_node(sources, "observed")
        report, _ = engine.run(snapshot, None, grace=at_once, confirm_after=at_once)
        looks += 1
        states.update(one.state for one in report.assessment.reservations)
        unlisted += sum(one.why.endswith("recorded but not listed") for one in report.assessment.reservations)
        wrong += _wrong(report)
    found = {"looks": looks, "states": states, "unlisted": unlisted, "wrong": len(wrong), "first": wrong[:_MOST]}
    print(json.dumps(found))


def _wrong(report: Report) -> list[str]:
    # host-local creates a file and then writes it, so an empty one is about to be written.
    judged = [one for one in report.assessment.reservations if one.container_id and one.state not in _OWNED]
    problems = [one.finding.message for one in report.problems if one.confirmed]
    return [f"{one.name} {one.state}: {one.why}" for one in judged] + problems + [one.why for one in report.unavailable]


if __name__ == "__main__":
    main(float(sys.argv[1]))
