"""Log lines: changes, not syncs. What each sync of a life logs is in golden/log.txt, below what happened in it."""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta

from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.finding import Finding, Severity, SkippedCheck
from agent.model.release import Cleaning, Reason, Refusal, Verdict
from agent.model.report import Report
from agent.model.snapshot import (
    Known,
    NetworkStore,
    NotRequested,
    Reading,
    Reservation,
    Snapshot,
    Unavailable,
)
from agent.model.watches import Evidence
from tests import builders as b
from tests.builders import node, scanned, without
from tests.exporters import cleanings as c
from tests.exporters.built import LOST
from tests.exporters.cleanings import cleaning, refused, released
from tests.exporters.daemon import Daemon
from tests.kube_events.syncs import confirmed as report_of
from tests.kube_events.syncs import leak

Golden = Callable[[str, str], None]
AWAY, VARIED = (
    Unavailable("reservations", "x"),
    Unavailable("reservations", "together with 4 others"),
)
UNUSED = NotRequested("reservations", "its addresses are those of podman")
BROKEN = (SkippedCheck("shared_ip", "KeyError: 'a bug'", broken=True),)
OTHER = node(b.reservation(LOST.ip, "8" * 64))


def networks(**readings: Reading[tuple[Reservation, ...]]) -> Snapshot:
    stores = (NetworkStore(name, reading, discovered=True) for name, reading in readings.items())
    return replace(node(), reservations=(*node().reservations, *stores))


def after(*news: DeviceTransition) -> Snapshot:
    """The kubelet and a plugin started with the node; this happened since."""
    started = b.transition(TransitionKind.KUBELET_STARTED, ago=b.UPTIME)
    history = (started, b.transition(TransitionKind.REGISTERED, b.KVM, ago=b.UPTIME), *news)
    return node(device_plugins=b.device_plugins(*history))


def at(
    second: int, what: TransitionKind, resource: str = "", socket: str = "", *, exact: bool = True
) -> DeviceTransition:
    return b.transition(what, resource, socket=socket, exact=exact, ago=-timedelta(seconds=second))


NEWS = (
    at(16, TransitionKind.KUBELET_STARTED),
    at(17, TransitionKind.SOCKET_APPEARED, socket=b.KVM_SOCKET),
    at(18, TransitionKind.REGISTERED, b.KVM),
    at(19, TransitionKind.LOST, b.KVM, exact=False),
)
RESTORED, LAGS = b.shown(Evidence.RV_RESET), b.shown(Evidence.OLDER_LIST)
LIVES: dict[str, tuple[tuple[str, Snapshot], ...]] = {
    "findings": (
        ("a healthy node: nothing", node()),
        ("a leak, not confirmed: nothing", node(LOST)),
        ("still not: nothing", node(LOST)),
        ("confirmed", node(LOST)),
        ("it is still there: nothing", node(LOST)),
        ("its detector cannot run: only the source", without(node(LOST), "containers")),
        ("still not: nothing", without(node(LOST), "containers")),
        ("it was there all the time: only the source", node(LOST)),
        ("another leak with its address: the first one is closed", OTHER),
        ("not confirmed: nothing", OTHER),
        ("confirmed", OTHER),
        ("gone while nothing can be read", b.dark_node()),
        ("closed when it is known", node()),
        ("the clock was set", node(clock_set_by=timedelta(hours=2))),
    ),
    "device plugins": (
        ("what was before the first snapshot: nothing", after()),
        ("news", after(*NEWS)),
        ("no news: nothing", after(*NEWS)),
        ("unavailable", without(after(), "device_plugins")),
        ("what happened meanwhile", after(*NEWS, at(60, TransitionKind.REGISTERED, b.KVM, exact=False))),
        ("of the past, by a clock that was set back", after(*NEWS, at(-3600, TransitionKind.LOST, b.KVM))),
    ),
    "device plugins that are unavailable at first": (
        ("unavailable", without(after(), "device_plugins")),
        ("what was before: only the source", after()),
    ),
    "sources": (
        ("not there, and disabled: only what a node need not have", b.without_api(node(containers=NotRequested("containers", "no docker")))),  # noqa: E501
        ("the same: nothing", b.without_api(node(containers=NotRequested("containers", "no docker")))),
        ("unavailable", without(node(), "containers")),
        ("for another reason: nothing", node(containers=Unavailable("containers", "no word for 135 s"))),
        ("recovered", node()),
    ),
    "networks": (
        ("one fails", networks(a=AWAY)),
        ("it for another reason, and another one: only that", networks(a=VARIED, b=AWAY)),
        ("one recovers, the other is not in use", networks(a=Known(()), b=UNUSED)),
        ("one fails again", networks(a=AWAY, b=UNUSED)),
        ("which networks there are is not known: nothing of them", networks(auto=AWAY)),
        ("it is known again: nothing of them", networks(a=AWAY, b=UNUSED)),
        ("the directory of the failing one is gone", networks()),
    ),
    "watches": (
        ("etcd was restored, and a server lags", node(watches=[RESTORED, LAGS])),
        ("again and again: nothing", node(watches=[replace(RESTORED, count=9), LAGS])),
        ("restored once more", node(watches=[replace(RESTORED, first=RESTORED.first + timedelta(hours=3)), LAGS])),
    ),
}  # fmt: skip
BUSY = c.outcome(Verdict.BUSY, why="another cleaner is at work")
HALTED = cleaning(halted="it is there again", warnings=("journal: line 3",))
PENDING = Refusal(Reason.TEARDOWN_PENDING, "the kubelet will release it")
CLEANUPS: tuple[tuple[str, Cleaning], ...] = (
    (
        "what is not a leak is refused: nothing",
        cleaning(refused(PENDING, of=(b.reservation("10.244.1.2", "1" * 64),))),
    ),
    ("refused", cleaning(refused(c.CANDIDATE, c.BUDGET))),
    (
        "refused, with other seconds: nothing",
        cleaning(refused(replace(c.CANDIDATE, why="45 s old"))),
    ),
    (
        "the guards cannot be evaluated: nothing",
        cleaning(unavailable=(Unavailable("containers", "timed out"),)),
    ),
    ("refused as before: nothing", cleaning(refused(c.CANDIDATE))),
    ("refused for another reason", cleaning(refused(c.BUDGET))),
    ("failed", cleaning(BUSY)),
    ("a dry run", cleaning(c.outcome(Verdict.WOULD_RELEASE), dry_run=True)),
    ("released with both addresses", cleaning(released(*c.DUAL, why="left in libcni's cache: x"))),
    ("halted, with a warning", HALTED),
    ("the same: nothing", HALTED),
    ("another warning", replace(HALTED, warnings=(*HALTED.warnings, "journal: line 4"))),
    ("resumed: nothing", cleaning()),
    ("halted again", replace(HALTED, warnings=())),
)


def test_a_life_is_logged_as_it_was(golden: Golden) -> None:
    texts = []
    for life, steps in LIVES.items():
        daemon = Daemon()
        texts += [written(f"{life}: {what}", daemon.sync(snapshot)) for what, snapshot in steps]
    daemon, report = Daemon(), scanned(node(LOST))
    texts.append(written("cleanup: a leak is found", daemon.export(report)))
    texts += [
        written(f"cleanup: {what}", daemon.export(replace(report, cleaning=done)))
        for what, done in CLEANUPS
    ]
    daemon = Daemon()
    texts += [
        written(f"a detector fails: {what}", daemon.sync(node(), gaps=BROKEN))
        for what in ("", "nothing")
    ]
    golden("log.txt", "".join(texts))


def written(head: str, daemon: Daemon) -> str:
    lines = "".join(f"{json.dumps(line)}\n" for line in daemon.lines)
    assert bool(lines) is not head.endswith("nothing"), head
    return f"===== {head}\n{lines}"


def test_a_finding_that_becomes_worse_is_logged_again() -> None:
    daemon, worse = Daemon(), report_of(leak(9, severity=Severity.CRITICAL))
    reports: Iterable[Report] = (report_of(leak(9)), worse, worse, report_of(leak(9)))
    assert [daemon.export(report).events for report in reports] == [
        ["finding.opened"],
        ["finding.opened"],
        [],
        [],
    ]


def test_each_release_is_logged_also_of_a_file_that_was_put_back_at_once() -> None:
    daemon = Daemon(mode="clean")
    report = replace(report_of(leak(1)), cleaning=cleaning(released()))
    again = [Counter(daemon.export(report).events)["address.released"] for _ in range(2)]
    assert again == [1, 1]


def test_thousands_of_findings_are_a_thousand_lines_and_then_a_thousand_an_hour() -> None:
    daemon = Daemon()

    def lines(hours: float, *findings: Finding) -> tuple[int, int]:
        logged = daemon.export(report_of(*findings, later=timedelta(hours=hours))).lines
        omitted = [line["omitted"] for line in logged if line["event"] == "log.limited"]
        return len(logged) - len(omitted), sum(omitted)

    many = [leak(1, network=f"net-{number}") for number in range(1500)]
    daemon.export(report_of())
    assert [lines(0, *many), lines(0.1), lines(0.6, *many), lines(5)] == [
        (1000, 500), (100, 1400), (500, 1000), (1000, 500),
    ]  # fmt: skip
    full = replace(
        leak(1), detector="exhausted_range", subject="kubenet", severity=Severity.CRITICAL
    )
    report = report_of(*many, full, later=timedelta(hours=5))
    events = Counter(daemon.export(replace(report, cleaning=cleaning(released()))).events)
    assert (events["finding.opened"], events["address.released"]) == (1, 1), (
        "these are logged all the same"
    )
