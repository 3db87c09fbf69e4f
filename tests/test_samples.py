"""The sample outputs in README.md and in the runbooks are what the commands print, mostly for recorded nodes."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.checks import engine
from agent.checks.registry import DETECTORS
from agent.cleanup.run import Budget, DryRun
from agent.exporters.text import clean, scan
from agent.model.recording import loads
from agent.model.snapshot import Unavailable
from tests.builders import make_limits, node, reservation, sandbox, scanned
from tests.cleanup.file_operations import Files, InMemoryJournal, Owners
from tests.deploy.test_runbooks import ALERTS, blocks, is_shell, text_of
from tests.exporters.cleanings import cleaning

ROOT = Path(__file__).parents[1]
RECORDED = {
    "NodeleakLateDevicePlugin": "devices-plugin-missing",
    "NodeleakLeakedAddresses": "incident",
    "NodeleakNodeUnregistered": "registration-deleted",
    "NodeleakRangeExhausted": "incident",
    "NodeleakRejectedPods": "devices-kubelet-restart",
    "NodeleakSharedAddress": "files-removed-by-hand",
    "NodeleakSourceDown": "docker-silent",
    "NodeleakStartedWithoutDevice": "devices-silently-started",
    "NodeleakUnmanagedAddress": "docker-upgrade-orphan",
    "NodeleakUnreservedAddress": "files-removed-by-hand",
    "NodeleakVolumeLost": "volumes-lost",
    "NodeleakWatchReplayed": "old-api-server",
}
"""The node of each page's samples."""
NO_API_SERVER = "no event for 312 s: cannot connect to the API server at https://10.96.0.1:443: connection refused"
HALTED = (
    "released container 0a917f395c84 reappeared (its address was 10.253.6.235; "
    "`nodeleak restore 20260326T192000.123456Z-0a917f395c84` puts it back)"
)
OUTPUT = re.compile(
    r"^(NETWORK(?!=)|RESOURCE|Critical:|Warning:|Incomplete:|Unavailable|Checks|Cleanup|pods: )"
    rf"|^ *({'|'.join(detector.NAME for detector in DETECTORS)}): ",
    re.MULTILINE,
)
"""How output of nodeleak begins, and not that of other commands."""


def outputs(recorded: str) -> tuple[str, str]:
    """Return what `scan` and `clean` print for a recorded node."""
    recording = loads((ROOT / "tests" / "nodes" / f"{recorded}.json").read_text())
    report = engine.replay(recording.snapshots, grace=recording.grace, confirm_after=recording.confirm_after)
    cleaner = DryRun(make_limits(), Budget(), "clean", InMemoryJournal(), Owners().recheck(), Files())
    cleaned = cleaner.after_snapshot(recording.snapshots, report)
    return scan.scan_table(report), clean.clean_table(cleaned)


def with_leaks(in_use: int, leaked: int) -> str:
    """Return what `scan` prints for a node with so many addresses; two are in use on each."""
    used = [
        (reservation(f"10.244.1.{n}", f"{n:064x}"), sandbox(f"{n:064x}", f"shop/{n}")) for n in range(4, in_use + 2)
    ]
    leaks = [reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(in_use + 2, in_use + 2 + leaked)]
    return scan.scan_table(scanned(node(*(part for pair in used for part in pair), *leaks)))


def printed(page: str) -> tuple[str, ...]:
    match page:
        case "NodeleakCleanupHalted":
            return (clean.clean_table(cleaning(halted=HALTED)),)
        case "NodeleakRangeFillingUp":
            return (with_leaks(103, 120),)
        case "NodeleakRangeNearlyExhausted":
            return (with_leaks(205, 40),)
        case "NodeleakSourceDownManyNodes":
            away: dict[str, Any] = {source: Unavailable(source, NO_API_SERVER) for source in ("pods", "node")}
            return (scan.scan_table(scanned(replace(node(), **away))),)
        case _:
            return outputs(RECORDED[page])


def pattern(sample: str) -> str:
    """A line `…` stands for any lines, and `…` at the end of a line for the rest of it. Samples are not indented."""
    lines = ("(?:.*\n)*?" if line == "…" else _line(line) for line in sample.splitlines())
    # Of a log line, the page has only the message.
    return f"(?m:^|: ){''.join(lines)}"


def _line(line: str) -> str:
    return " *" + re.escape(line.removesuffix("…")) + (".*\n" if line.endswith("…") else "\n")


def sample(command: str) -> str:
    readme = (ROOT / "README.md").read_text()
    (text,) = re.findall(rf"^```\n\$ nodeleak {command}\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    return str(text)


def test_the_samples_of_the_readme_are_the_output() -> None:
    assert (sample("scan"), sample("clean")) == outputs("incident")


SAMPLES = [
    pytest.param(page, block, id=page)
    for page in ALERTS
    for block in blocks(text_of(page))
    if not is_shell(block) and OUTPUT.search(block)
]


@pytest.mark.parametrize(("page", "block"), SAMPLES)
def test_a_sample_of_a_runbook_is_output(page: str, block: str) -> None:
    found = [text for text in printed(page) if re.search(pattern(block), text)]
    assert found, "\n".join(["not in any of these:", *printed(page)])


def test_there_is_a_sample_for_each_page_that_should_have_one() -> None:
    """A pattern that matches nothing would pass silently."""
    assert {str(param.values[0]) for param in SAMPLES} >= set(RECORDED)


@pytest.mark.parametrize("wrong", ["Critical: no free\n", "NETWORK  RANGE\n…\nnothing\n", "leaked\n"])
def test_a_sample_that_is_not_printed_is_found(wrong: str) -> None:
    assert re.search(pattern(wrong), outputs("incident")[0]) is None
