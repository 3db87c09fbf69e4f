"""Headline and state of a report, and what no golden file can show: very many leaks, and names that are no text."""

import json
from dataclasses import replace
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from agent.checks import engine
from agent.checks.registry import DETECTORS
from agent.exporters.json.status import checked
from agent.kube_events.messages import event_specs
from agent.model.documents import Recording, dumps
from agent.model.finding import Finding, Severity, SkippedCheck, TrackedFinding
from agent.model.report import Report
from agent.model.snapshot import Reservation, Snapshot
from tests import builders as b
from tests.builders import GRACE, NOW, dark_node, empty_file, node, reservation, scanned, without
from tests.cli.commands import nodeleak
from tests.exporters.built import LOST
from tests.exporters.cleanings import cleaning
from tests.exporters.daemon import Daemon
from tests.exporters.served import serving, status
from tests.kube_events.syncs import leak


def scan(snapshot: Snapshot, *arguments: str) -> str:
    recording = dumps(Recording(GRACE, GRACE * 0, (snapshot, snapshot)))
    return nodeleak("scan", "--recording=-", *arguments, given=recording).out


def document(snapshot: Snapshot) -> Any:
    return json.loads(scan(snapshot, "--output=json"))


def report_with(*findings: Finding) -> Report:
    tracked = tuple(
        TrackedFinding(finding, finding.since or NOW, confirmed=True) for finding in findings
    )
    return replace(scanned(node()), findings=tracked)


FULL = Finding("exhausted_range", "kubenet", "full", severity=Severity.CRITICAL, network="kubenet")
SHARED = Finding("shared_ip", "a", "m")
HALTED = cleaning(halted="released container 950b reappeared")
FAILED = replace(scanned(node()), gaps=(SkippedCheck("shared_ip", "KeyError", broken=True),))


def test_the_headline_is_the_worst_that_is_known_and_never_good_about_what_was_not_read() -> None:
    leak_of_one = "Warning: 1 leaked pod address on worker-1"
    halted = f"Critical: cleanup halted: {HALTED.halted}"
    volume = Finding("detached_volume", "v", "m", severity=Severity.CRITICAL)
    full = "Critical: only 251 free pod addresses left (0 of 253 leaked)"
    taken = node(*(reservation(f"10.244.1.{n}", f"{n:064x}") for n in range(4, 255)))
    first_sync, _ = engine.run(taken, None, grace=GRACE, confirm_after=timedelta(0))
    registered = {
        one: report_with(Finding("unregistered_node", "n", "m", severity=one)) for one in Severity
    }
    checks = f"{len(DETECTORS)} checks could not run"
    unregistered = "this node is not registered correctly"
    deleted = f"Critical: {unregistered}: the cluster-autoscaler may delete the instance"
    for report, state, headline in (
        (scanned(node()), "ok", "OK: no findings"),
        (scanned(node(LOST)), "findings", leak_of_one),
        (first_sync, "ok", "Unconfirmed: no free pod addresses (0 of 253 leaked)"),
        (
            scanned(dark_node()),
            "incomplete",
            f"Incomplete: {len(DETECTORS)} of {checks}: it gave no word",
        ),
        (
            scanned(without(node(), "node")),
            "incomplete",
            f"Incomplete: 7 of {checks}: it gave no word",
        ),
        (FAILED, "incomplete", f"Incomplete: 1 of {checks}: shared_ip (KeyError)"),
        (scanned(without(node(LOST), "device_plugins")), "findings", leak_of_one),
        (replace(scanned(node()), cleaning=HALTED), "findings", halted),
        (replace(report_with(leak(1)), cleaning=HALTED), "findings", halted),
        (replace(report_with(FULL), cleaning=HALTED), "findings", full),
        # The severity comes before the kind, and the kind before the number.
        (report_with(SHARED, volume), "findings", "Critical: 1 volume missing from the node's volumesAttached"),
        (report_with(leak(1), leak(2), SHARED), "findings", "Warning: 1 pod address in use by two pods"),
        (registered[Severity.INFO], "ok", "OK: 1 informational finding"),
        (registered[Severity.WARNING], "findings", f"Warning: {unregistered}"),
        (registered[Severity.CRITICAL], "findings", deleted),
    ):  # fmt: skip
        tree = json.loads(json.dumps(status(report), allow_nan=False))
        assert (tree["state"], tree["headline"]) == (state, headline)
        assert checked(tree) == tree, "the command reads it without loss"
        assert status(report, alive=False)["state"] == "stalled"
    stalled = "Incomplete: the nodeleak agent is up but has stopped scanning"
    assert status(scanned(node()), alive=False)["headline"] == stalled


def test_only_the_commands_that_work_here_are_printed() -> None:
    pod = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    recording = dumps(Recording(GRACE, GRACE * 0, (node(LOST), node(LOST))))
    commands: tuple[tuple[dict[str, Any], str], ...] = (
        ({}, "nodeleak clean --apply --cleanup-network=auto"),
        (pod, "kubectl nodeleak clean-job worker-1 --apply --run"),
        (pod | {"NODELEAK_CLEANUP_NETWORK": "auto"}, "nodeleak clean --apply"),
    )
    for environment, command in commands:
        text = nodeleak("scan", "--recording=-", given=recording, **environment).out
        assert [line.strip() for line in text.splitlines() if "--apply" in line] == [command]


def test_pods_are_deleted_only_from_a_range_that_pods_fill() -> None:
    taken = [reservation(f"10.244.1.{n}", b.WEB_ID) for n in range(4, 14)]
    for last, step in (
        (
            [reservation("10.244.1.14", b.WEB_ID)],
            "No address is known to be leaked. Delete pods here",
        ),
        (
            [reservation("10.244.1.14", age=timedelta(0))],
            "1 address may be leaked: this is known after the grace",
        ),
        (
            [
                reservation("10.244.1.14", LOST.container_id),
                b.sandbox(b.GONE, "shop/old", "exited"),
            ],
            "1 ended sandbox",
        ),
    ):
        text = scan(node(*taken, *last, node=[replace(b.WORKER, pod_cidrs=("10.244.1.0/28",))]))
        assert f". {step}" in text
        assert ("Delete pods" in text) == ("Delete pods" in step)


MANY = [
    reservation(f"10.245.{number >> 8}.{number & 255}", f"{number:064x}") for number in range(550)
]
MOST, EVERY = 512, len(MANY)


def leaking(*found: Reservation) -> Snapshot:
    return node(*found, processes=[b.processes(kubelet=timedelta(hours=1))])


def test_all_leaks_are_counted_and_listed_however_many_there_are() -> None:
    snapshot = leaking(*reversed(MANY))
    text, tree = scan(snapshot), document(snapshot)
    assert f"\nWarning: {EVERY} leaked pod addresses on worker-1\n" in text
    assert f"\n{EVERY} warnings: leaked pod addresses\n" in text
    assert sum(finding["count"] for finding in tree["findings"]) == EVERY
    assert [finding["count"] for finding in tree["findings"] if finding["count"] > 1] == [
        EVERY - MOST
    ]
    listed = {f"kubenet/{lost.ip}" for lost in MANY}
    assert set(scan(snapshot, "--output=name").split()) == listed
    leaked = {
        f"kubenet/{one['ip']}": one["cause"]
        for one in tree["reservations"]
        if one["state"] == "leaked"
    }
    assert leaked == dict.fromkeys(listed, "kubelet_restart")
    (message,) = (one.message for one in event_specs(scanned(snapshot)) if one.subject == "kubenet")
    assert message.startswith(f"{EVERY} findings in kubenet: 10.245.0.0 is reserved for")


def events_of(daemon: Daemon, snapshot: Snapshot) -> list[tuple[str, str]]:
    lines = daemon.sync(snapshot, confirm_after=timedelta(0)).lines
    return [
        (line["event"], line["subject"]) for line in lines if line["event"].startswith("finding.")
    ]


def test_the_log_opens_what_is_listed_and_closes_only_what_is_gone() -> None:
    daemon = Daemon()
    assert events_of(daemon, leaking(*MANY[20:])) == []
    assert len(events_of(daemon, leaking(*MANY[20:]))) == MOST + 1
    # Newer leaks have lower addresses; they do not displace those that are listed.
    assert [events_of(daemon, leaking(*MANY)) for _ in range(2)] == [[], []]
    assert events_of(daemon, leaking(*MANY[:20], *MANY[22:])) == [
        *(("finding.opened", str(lost.key)) for lost in MANY[532:534]),
        *(("finding.closed", str(lost.key)) for lost in MANY[20:22]),
    ]
    found = {"detector": "leaked_reservation", "severity": "warning", "phase": "confirmed"}
    assert (
        daemon.get("findings", **found)
        == daemon.get("reservations", network="kubenet", state="leaked")
        == EVERY - 2
    )
    assert daemon.get("leaks_confirmed_total", network="kubenet", cause="kubelet_restart") == EVERY
    # Nor does it close what still leaks.
    daemon, empty = Daemon(), [empty_file(f"10.244.9.{number}") for number in range(5)]
    for _ in range(3):
        events_of(daemon, leaking(*MANY, *empty))
    # Sandboxes are unknown now, empty files are not: they are listed for a while.
    events_of(daemon, without(leaking(*MANY, *empty), "containers"))
    assert [
        one for one in events_of(daemon, leaking(*MANY, *empty)) if one[0] == "finding.closed"
    ] == []
    closed = {
        subject for event, subject in events_of(daemon, leaking(*MANY)) if event == "finding.closed"
    }
    assert closed >= {f"kubenet/10.244.9.{number}" for number in range(5)}


def test_no_output_falls_silent_at_an_odd_name_or_has_control_characters(tmp_path: Path) -> None:
    names = {"a\nb": r"a\nb", "a\x1b[2Jb": r"a\x1b[2Jb", "\u202e": r"\u202e"}
    for name, shown in (names | {odd: odd for odd in ('{}"\\', "-o", "x" * 255)}).items():
        snapshot = node(reservation("10.9.0.9", network=name))
        report, daemon = scanned(snapshot), Daemon()
        with serving(tmp_path) as server:
            page = unescape(server.page(report))
        for text in (page, scan(snapshot, "-v"), scan(snapshot, "--map")):
            assert shown in text
            assert all(character.isprintable() or character == "\n" for character in text)
        assert name in {network["name"] for network in document(snapshot)["networks"]}
        families = text_string_to_metric_families(daemon.export(report).scrape())
        assert name in {
            sample.labels.get("network") for family in families for sample in family.samples
        }
        assert f"{name}/10.9.0.9" in {line.get("subject") for line in daemon.lines}
        (spec,) = event_specs(report)
        assert spec.message.isprintable()
        json.dumps(spec.event(NOW), ensure_ascii=False).encode()
