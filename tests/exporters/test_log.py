"""Log lines: changes, not syncs."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import structlog

from agent.checks import engine
from agent.checks.confirm import ConfirmationState
from agent.exporters.log import MOST_LINES, LogExporter, configure
from agent.exporters.text.clean import WHEN_HALTED
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.finding import Finding, Severity, SkippedCheck
from agent.model.release import Cleaning, Reason, Refusal, Verdict
from agent.model.report import Report
from agent.model.snapshot import (
    SOURCES,
    Known,
    NetworkStore,
    NotRequested,
    Reading,
    Reservation,
    Snapshot,
    Unavailable,
)
from agent.model.watches import Evidence
from tests.builders import (
    CIDR,
    GONE,
    GRACE,
    KVM,
    KVM_SOCKET,
    UPTIME,
    cni_result,
    dark_node,
    device_plugins,
    node,
    reservation,
    shown,
    transition,
    without,
)
from tests.exporters.cleanings import BUDGET, CANDIDATE, DUAL, ENTRY, cleaning, outcome, refused, released
from tests.kube_events.syncs import confirmed as report_of
from tests.kube_events.syncs import leak

LOST = reservation("10.244.1.9")


class Daemon:
    """Syncs, and the lines that each of them logs."""

    def __init__(self, capture: structlog.testing.LogCapture) -> None:
        self._capture, self._seconds = capture, 0
        self._memory: ConfirmationState | None = None
        self._exporter = LogExporter(structlog.get_logger())

    def sync(self, snapshot: Snapshot) -> list[dict[str, Any]]:
        self._seconds += 15
        later = timedelta(seconds=self._seconds)
        snapshot = replace(snapshot, taken_at=snapshot.taken_at + later, uptime=snapshot.uptime + later)
        report, self._memory = engine.run(snapshot, self._memory, grace=GRACE, confirm_after=timedelta(seconds=30))
        return self.export(report)

    def export(self, report: Report) -> list[dict[str, Any]]:
        before = len(self._capture.entries)
        self._exporter.export(report, 0.01)
        return [dict(entry) for entry in self._capture.entries[before:]]


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    capture = structlog.testing.LogCapture()
    structlog.configure(processors=[capture])
    yield Daemon(capture)
    structlog.reset_defaults()


def events(lines: list[dict[str, Any]]) -> list[str]:
    return [line["event"] for line in lines]


def confirmed(daemon: Daemon, snapshot: Snapshot) -> list[dict[str, Any]]:
    """Sync until a finding is confirmed; return the lines of that sync."""
    for _ in range(2):
        assert daemon.sync(snapshot) == []
    return daemon.sync(snapshot)


def test_a_healthy_node_is_silent(daemon: Daemon) -> None:
    assert [daemon.sync(node()) for _ in range(5)] == [[]] * 5


def test_an_unconfirmed_finding_is_not_logged(daemon: Daemon) -> None:
    assert daemon.sync(node(LOST)) == []
    assert daemon.sync(node()) == []


def test_a_confirmed_finding_is_logged_once_with_its_fields(daemon: Daemon) -> None:
    leaking = node(LOST, cni_result(GONE, "shop/cart", CIDR))
    (line,) = confirmed(daemon, leaking)
    text = line.pop("text")
    assert line == {
        "event": "finding.opened",
        "log_level": "warning",
        "detector": "leaked_reservation",
        "subject": "kubenet/10.244.1.9",
        "severity": "warning",
        "since": "2026-03-26T18:00:00+00:00",
        "cause": "unknown",
        "pod": "shop/cart",
    }
    assert text.startswith("10.244.1.9 is reserved for container 999999999999 of pod shop/cart")
    assert [daemon.sync(leaking) for _ in range(3)] == [[]] * 3


def test_a_finding_that_becomes_worse_is_logged_again(daemon: Daemon) -> None:
    report = report_of(leak(9))
    assert events(daemon.export(report)) == ["finding.opened"]
    (line,) = daemon.export(report_of(leak(9, severity=Severity.CRITICAL)))
    assert (line["event"], line["severity"]) == ("finding.opened", "critical")
    assert daemon.export(report) == []


def test_a_finding_that_is_gone_is_closed(daemon: Daemon) -> None:
    confirmed(daemon, node(LOST))
    assert daemon.sync(node()) == [
        {
            "event": "finding.closed",
            "log_level": "info",
            "detector": "leaked_reservation",
            "subject": "kubenet/10.244.1.9",
        }
    ]
    assert daemon.sync(node()) == []


def test_a_finding_stays_open_while_its_detector_cannot_run(daemon: Daemon) -> None:
    confirmed(daemon, node(LOST))
    assert events(daemon.sync(without(node(LOST), "containers"))) == ["source.unavailable"]
    assert daemon.sync(without(node(LOST), "containers")) == []
    assert events(daemon.sync(node(LOST))) == ["source.recovered"]
    assert daemon.sync(node(LOST)) == []


def test_an_absent_source_is_logged_once_as_information(daemon: Daemon) -> None:
    no_docker = NotRequested("containers", "the runtime of this node is containerd://1.6.20, not docker")
    bare = node(containers=no_docker, checkpoints=NotRequested("checkpoints", no_docker.why))
    assert [(line["event"], line["log_level"], line["source"]) for line in daemon.sync(bare)] == [
        ("source.not_requested", "info", source) for source in ("checkpoints", "containers")
    ]
    assert [daemon.sync(bare) for _ in range(3)] == [[]] * 3


def test_an_unavailable_source_that_is_absent_has_not_recovered(daemon: Daemon) -> None:
    assert events(daemon.sync(without(node(), "containers"))) == ["source.unavailable"]
    assert events(daemon.sync(node(containers=NotRequested("containers", "no docker")))) == ["source.not_requested"]


def test_a_disabled_source_is_not_logged(daemon: Daemon) -> None:
    assert (
        daemon.sync(node(pods=NotRequested("pods", "--api=off"), addresses=NotRequested("addresses", "not needed")))
        == []
    )


def test_a_finding_gone_during_a_gap_is_closed_after_it(daemon: Daemon) -> None:
    confirmed(daemon, node(LOST))
    daemon.sync(dark_node())
    lines = daemon.sync(node())
    assert set(events(lines)) == {"source.recovered", "finding.closed"}
    assert events(lines)[-1] == "finding.closed"


def test_two_findings_with_one_subject_are_two(daemon: Daemon) -> None:
    confirmed(daemon, node(LOST))
    assert events(daemon.sync(node(reservation(LOST.ip, "8" * 64)))) == ["finding.closed"]
    daemon.sync(node(reservation(LOST.ip, "8" * 64)))
    assert events(daemon.sync(node(reservation(LOST.ip, "8" * 64)))) == ["finding.opened"]


# Device plugins

PAST = (
    transition(TransitionKind.KUBELET_STARTED, ago=UPTIME),
    transition(TransitionKind.REGISTERED, KVM, ago=UPTIME),
)


def after(*more: DeviceTransition) -> Snapshot:
    """The kubelet and a plugin started with the node; this happened since."""
    plugins = device_plugins(*PAST, *more, kubelet_socket=None)
    return node(device_plugins=plugins)


def test_transitions_before_the_first_snapshot_are_not_logged(daemon: Daemon) -> None:
    assert [daemon.sync(after()) for _ in range(3)] == [[]] * 3


def test_each_transition_of_a_plugin_is_logged_once(daemon: Daemon) -> None:
    daemon.sync(after())
    seconds = iter(range(16, 30))

    def now(what: TransitionKind, resource: str = "", *, socket: str = "", exact: bool = True) -> DeviceTransition:
        return transition(what, resource, socket=socket, exact=exact, ago=-timedelta(seconds=next(seconds)))

    news = (
        now(TransitionKind.KUBELET_STARTED),
        now(TransitionKind.SOCKET_APPEARED, socket=KVM_SOCKET),
        now(TransitionKind.REGISTERED, KVM),
        now(TransitionKind.LOST, KVM, exact=False),
    )
    lines = daemon.sync(after(*news))
    assert [line["event"] for line in lines if "." in line["event"] and not line["event"].startswith("f")] == [
        "kubelet.started", "device_plugin.socket_appeared", "device_plugin.registered", "device_plugin.lost",
    ]  # fmt: skip
    assert lines[1] == {
        "event": "device_plugin.socket_appeared",
        "log_level": "info",
        "socket": KVM_SOCKET,
        "at": "2026-03-26T20:00:17.000+00:00",
        "exact": True,
    }
    assert (lines[3]["log_level"], lines[3]["resource"], lines[3]["exact"]) == ("warning", KVM, False)
    assert daemon.sync(after(*news)) == []


def test_a_transition_without_a_stored_history_is_logged_once(daemon: Daemon) -> None:
    daemon.sync(after())

    def snapshot_at(ago: int) -> Snapshot:
        return after(transition(TransitionKind.LOST, KVM, exact=False, ago=-timedelta(seconds=ago)))

    assert events(daemon.sync(snapshot_at(30))) == ["device_plugin.lost"]
    assert [daemon.sync(snapshot_at(ago)) for ago in (45, 60)] == [[], []]


def test_a_plugin_that_comes_and_goes_is_logged_each_time(daemon: Daemon) -> None:
    daemon.sync(after())
    history: list[DeviceTransition] = []
    for ago, what in enumerate([TransitionKind.LOST, TransitionKind.REGISTERED] * 2, 30):
        history.append(transition(what, KVM, exact=False, ago=-timedelta(seconds=ago)))
        assert len(daemon.sync(after(*history))) == 1


def test_a_history_unavailable_at_first_is_not_new_later(daemon: Daemon) -> None:
    daemon.sync(without(after(), "device_plugins"))
    assert events(daemon.sync(after())) == ["source.recovered"]


def test_transitions_while_unavailable_are_logged_afterwards(daemon: Daemon) -> None:
    daemon.sync(after())
    daemon.sync(without(after(), "device_plugins"))
    lost = transition(TransitionKind.LOST, KVM, ago=-timedelta(seconds=40))
    assert set(events(daemon.sync(after(lost)))) == {"source.recovered", "device_plugin.lost"}


# Sources


def test_an_unavailable_source_is_logged_once_and_when_it_recovers(daemon: Daemon) -> None:
    assert daemon.sync(without(node(), "containers")) == [
        {"event": "source.unavailable", "log_level": "error", "source": "containers", "why": "it gave no word"}
    ]
    assert daemon.sync(without(node(), "containers")) == []
    assert daemon.sync(node()) == [{"event": "source.recovered", "log_level": "info", "source": "containers"}]


def test_a_reason_that_counts_seconds_is_no_change(daemon: Daemon) -> None:
    assert events(daemon.sync(node(pods=Unavailable("pods", "no word for 120 s")))) == ["source.unavailable"]
    assert daemon.sync(node(pods=Unavailable("pods", "no word for 135 s"))) == []


def test_without_data_each_source_is_logged_once(daemon: Daemon) -> None:
    lines = daemon.sync(dark_node())
    assert sorted(line["source"] for line in lines) == sorted(SOURCES)
    assert daemon.sync(dark_node()) == []


def test_two_networks_fail_apart(daemon: Daemon) -> None:
    stores = node(unread_networks=["storage"]).reservations
    (storage,) = (store for store in stores if store.network == "storage")
    second = replace(storage, network="other", reading=Unavailable("reservations", "/net/other does not exist"))
    both = replace(node(), reservations=(*stores, second))
    assert events(daemon.sync(replace(node(), reservations=stores))) == ["source.unavailable"]
    (line,) = daemon.sync(both)
    assert line["why"] == "/net/other does not exist"


def networks(**readings: Reading[tuple[Reservation, ...]]) -> Snapshot:
    stores = (NetworkStore(name, reading, discovered=True) for name, reading in readings.items())
    return replace(node(), reservations=(*node().reservations, *stores))


def unread(why: str) -> Unavailable:
    return Unavailable("reservations", why)


def test_a_network_that_is_unavailable_for_a_varying_reason_has_not_recovered(daemon: Daemon) -> None:
    lines = daemon.sync(networks(a=unread("together with the 4 of other networks")))
    assert [(line["event"], line["source"], line["network"]) for line in lines] == [
        ("source.unavailable", "reservations", "a")
    ]
    assert daemon.sync(networks(a=unread("together with the 5 of other networks"))) == []
    assert daemon.sync(networks(a=Known(()))) == [
        {"event": "source.recovered", "log_level": "info", "source": "reservations", "network": "a"}
    ]


def test_one_network_recovers_while_another_is_not_in_use(daemon: Daemon) -> None:
    unused = NotRequested("reservations", "its addresses are those of podman")
    assert len(daemon.sync(networks(a=unread("x"), b=unread("x")))) == 2
    lines = daemon.sync(networks(a=Known(()), b=unused))
    assert [(line["event"], line["network"]) for line in lines] == [
        ("source.recovered", "a"), ("source.not_requested", "b"),
    ]  # fmt: skip


def test_a_network_that_cannot_be_found_for_a_while_has_not_changed(daemon: Daemon) -> None:
    unused = NotRequested("reservations", "its addresses are those of podman")
    assert len(daemon.sync(networks(a=unread("x"), b=unused))) == 2
    (line,) = daemon.sync(networks(auto=unread("cannot read the directory")))
    assert (line["event"], line["network"]) == ("source.unavailable", "auto")
    (line,) = daemon.sync(networks(a=unread("x"), b=unused))
    assert (line["event"], line["network"]) == ("source.recovered", "auto")
    (line,) = daemon.sync(networks())
    assert (line["event"], line["network"]) == ("source.recovered", "a"), "its directory is gone"


def test_thousands_of_networks_are_a_thousand_lines(daemon: Daemon) -> None:
    many = networks(**{f"net-{number}": unread("x") for number in range(MOST_LINES + 500)})
    logged = Counter(events(daemon.sync(many)))
    assert (logged["source.unavailable"], logged["log.limited"]) == (MOST_LINES, 1)


# The clock, and bugs of detectors


def test_a_clock_step_is_logged(daemon: Daemon) -> None:
    daemon.sync(node())
    assert events(daemon.sync(node(clock_set_by=timedelta(hours=2)))) == ["clock.stepped"]


def test_a_failed_detector_is_logged_once(daemon: Daemon) -> None:
    report, _ = engine.run(node(), None, grace=GRACE, confirm_after=timedelta(0))
    broken = replace(report, gaps=(SkippedCheck("shared_ip", "KeyError: 'a bug'", broken=True),))
    assert daemon.export(broken) == [
        {"event": "detector.failed", "log_level": "error", "detector": "shared_ip", "why": "KeyError: 'a bug'"}
    ]
    assert daemon.export(broken) == []


# Cleaning


class Cleaner:
    """Syncs of a node whose leak is logged already, and the lines that cleanup adds."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        confirmed(daemon, node(LOST))
        _, memory = engine.run(node(LOST), None, grace=GRACE, confirm_after=timedelta(0))
        self._leaked, _ = engine.run(node(LOST), memory, grace=GRACE, confirm_after=timedelta(0))
        self._healthy, _ = engine.run(node(), None, grace=GRACE, confirm_after=timedelta(0))
        assert daemon.export(self._leaked) == []

    def sync(self, one: Cleaning) -> list[dict[str, Any]]:
        return self._daemon.export(replace(self._leaked, cleaning=one))

    def healthy_sync(self, one: Cleaning) -> list[dict[str, Any]]:
        lines = self._daemon.export(replace(self._healthy, cleaning=one))
        return [line for line in lines if line["event"] != "finding.closed"]


@pytest.fixture
def cleaner(daemon: Daemon) -> Cleaner:
    return Cleaner(daemon)


ABOUT = {"network": "kubenet", "ip": "10.244.1.9", "container": GONE}


def test_a_release_is_logged_with_its_journal_entry(cleaner: Cleaner) -> None:
    assert cleaner.sync(cleaning(released())) == [
        {"event": "address.released", "log_level": "info", **ABOUT, "pod": "shop/cart", "entry": ENTRY}
    ]


def test_each_address_of_a_sandbox_is_logged_with_files_left_behind(cleaner: Cleaner) -> None:
    lines = cleaner.sync(cleaning(released(*DUAL, why="left in libcni's cache: no")))
    assert [(line["event"], line["ip"], line["why"]) for line in lines] == [
        ("address.released", "10.244.1.9", "left in libcni's cache: no"),
        ("address.released", "fd00::9", "left in libcni's cache: no"),
    ]


def test_a_failed_release_is_logged_once_until_it_fails_differently(cleaner: Cleaner) -> None:
    busy, failed = outcome(Verdict.BUSY, why="the lock is held"), outcome(Verdict.FAILED, why="read-only")
    assert cleaner.sync(cleaning(busy)) == [
        {
            "event": "release.failed", "log_level": "warning", **ABOUT, "pod": "shop/cart",
            "verdict": "busy", "why": "the lock is held",
        }
    ]  # fmt: skip
    assert [cleaner.sync(cleaning(busy)) for _ in range(3)] == [[]] * 3
    assert events(cleaner.sync(cleaning(failed))) == ["release.failed"]
    assert cleaner.sync(cleaning(failed)) == []


@pytest.mark.parametrize("verdict", [Verdict.CHANGED, Verdict.GONE])
def test_a_lost_race_is_logged(cleaner: Cleaner, verdict: Verdict) -> None:
    (line,) = cleaner.sync(cleaning(outcome(verdict, why="it is another")))
    assert (line["event"], line["verdict"], line["why"]) == ("release.failed", verdict.value, "it is another")


def test_a_refusal_is_logged_once_for_each_reason(cleaner: Cleaner) -> None:
    unsettled = [Refusal(Reason.UNSETTLED, f"docker started {n} s ago") for n in range(4)]
    assert cleaner.sync(cleaning(refused(unsettled[0], BUDGET))) == [
        {
            "event": "release.refused", "log_level": "info", **ABOUT,
            "reason": "unsettled", "why": "docker started 0 s ago",
        }
    ]  # fmt: skip
    assert [cleaner.sync(cleaning(refused(one))) for one in unsettled] == [[]] * 4
    assert [line["reason"] for line in cleaner.sync(cleaning(refused(BUDGET)))] == ["over_budget"]
    assert [line["reason"] for line in cleaner.sync(cleaning(refused(unsettled[0])))] == ["unsettled"]


def test_a_dry_run_is_logged_once_for_each_leak(cleaner: Cleaner) -> None:
    withheld = cleaning(outcome(Verdict.WOULD_RELEASE), applied=False)
    assert cleaner.sync(withheld) == [
        {"event": "release.dry_run", "log_level": "info", **ABOUT, "pod": "shop/cart"}
    ]  # fmt: skip
    assert [cleaner.sync(withheld) for _ in range(3)] == [[]] * 3


def test_a_refusal_is_logged_for_leaks_only(cleaner: Cleaner) -> None:
    # Between the end of a container and that of its address every pod looks like this.
    assert cleaner.healthy_sync(cleaning(refused(CANDIDATE))) == []
    assert cleaner.healthy_sync(cleaning(refused(Refusal(Reason.TEARDOWN_PENDING, "a checkpoint")))) == []


def test_a_sync_without_data_forgets_nothing(cleaner: Cleaner) -> None:
    cleaner.sync(cleaning(refused(BUDGET)))
    assert cleaner.sync(cleaning(unavailable=(Unavailable("containers", "silent"),))) == []
    assert cleaner.sync(cleaning(refused(BUDGET))) == []


def test_an_outcome_that_was_gone_meanwhile_is_logged_again(cleaner: Cleaner) -> None:
    cleaner.sync(cleaning(refused(BUDGET)))
    assert cleaner.sync(cleaning()) == []
    assert events(cleaner.sync(cleaning(refused(BUDGET)))) == ["release.refused"]


def test_an_address_that_leaks_again_is_another(cleaner: Cleaner) -> None:
    cleaner.sync(cleaning(released()))
    again = replace(LOST, inode=LOST.inode + 1)
    assert events(cleaner.sync(cleaning(released(again)))) == ["address.released"]


def test_halted_cleanup_is_logged_once_with_what_to_do(cleaner: Cleaner) -> None:
    halted = cleaning(halted="container 9999 is there again")
    assert cleaner.sync(halted) == [
        {
            "event": "cleanup.halted", "log_level": "error",
            "why": "container 9999 is there again", "do": WHEN_HALTED,
        }
    ]  # fmt: skip
    assert [cleaner.sync(halted) for _ in range(3)] == [[]] * 3


def test_damage_of_the_journal_is_logged_once(cleaner: Cleaner) -> None:
    damaged = cleaning(warnings=("journal: line 3",))
    assert cleaner.sync(damaged) == [
        {"event": "cleanup.warning", "log_level": "warning", "text": "journal: line 3"}
    ]  # fmt: skip
    assert cleaner.sync(damaged) == []
    assert [line["text"] for line in cleaner.sync(cleaning(warnings=("journal: line 3", "journal: line 4")))] == [
        "journal: line 4"
    ]


def test_syncs_with_nothing_to_release_are_silent(cleaner: Cleaner) -> None:
    assert [cleaner.healthy_sync(cleaning()) for _ in range(3)] == [[]] * 3


# How lines look


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("restored")
def test_lines_are_json_with_time_level_and_event_first(capsys: pytest.CaptureFixture[str]) -> None:
    log = configure("json")
    log.debug("sync.done")
    log.warning("finding.opened", detector="shared_ip", text="ünïcode\nand a second line")
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    tree = json.loads(line)
    assert list(tree) == ["timestamp", "level", "event", "detector", "text"]
    assert (tree["level"], tree["event"]) == ("warning", "finding.opened")
    assert tree["timestamp"].endswith("Z")


@pytest.mark.usefixtures("restored")
def test_text_has_colors_on_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    configure("text").info("agent.started", node="worker-1")
    line = capsys.readouterr().err
    assert "agent.started" in line
    assert "node=worker-1" in line
    assert "\x1b" not in line


@pytest.mark.usefixtures("restored")
def test_auto_is_json_away_from_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure("auto").info("agent.started")
    assert json.loads(capsys.readouterr().err)["event"] == "agent.started"


# Watches


def test_a_restored_etcd_and_a_lagging_server_are_logged_once_while_they_last(daemon: Daemon) -> None:
    restored, lags = shown(Evidence.RV_RESET), shown(Evidence.OLDER_LIST)
    lines = daemon.sync(node(watches=[restored, lags]))
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("watch.reset", "warning"), ("watch.lagging", "info"),
    ]  # fmt: skip
    assert (lines[0]["resource"], lines[0]["before"], lines[0]["version"]) == ("pods", 40, 7)
    assert daemon.sync(node(watches=[replace(restored, count=9), lags])) == []
    assert daemon.sync(without(node(), "watches"))[0]["event"] == "source.unavailable"
    again = replace(restored, first=restored.first + timedelta(hours=3))
    assert events(daemon.sync(node(watches=[again, lags]))) == ["source.recovered", "watch.reset"]


def test_a_fault_of_the_server_is_logged_as_a_finding(daemon: Daemon) -> None:
    (line,) = confirmed(daemon, node(watches=[shown()]))
    assert (line["event"], line["detector"], line["subject"]) == (
        "finding.opened", "replayed_watch", "pods deleted_below",
    )  # fmt: skip
    assert daemon.sync(node(watches=[replace(shown(), count=2)])) == []


def test_thousands_of_changing_findings_are_a_thousand_lines_and_then_a_thousand_an_hour(daemon: Daemon) -> None:
    def lines(hours: float, *findings: Finding) -> tuple[int, int]:
        logged = daemon.export(report_of(*findings, later=timedelta(hours=hours)))
        (limited,) = [one for one in logged if one["event"] == "log.limited"] or [{"omitted": 0}]
        return len(logged) - bool(limited["omitted"]), limited["omitted"]

    daemon.export(report_of())
    many = [leak(1, network=f"net-{number}") for number in range(1500)]
    assert lines(0, *many) == (MOST_LINES, 500)
    assert lines(0.1) == (100, 1400)
    assert lines(0.6, *many) == (500, 1000)
    assert lines(5) == (MOST_LINES, 500)


def test_what_was_released_is_logged_however_many_lines_there_were(daemon: Daemon) -> None:
    many = [leak(1, network=f"net-{number}") for number in range(1500)]
    report = replace(report_of(*many), cleaning=cleaning(released()))
    events = Counter(one["event"] for one in daemon.export(report))
    assert (events["finding.opened"], events["log.limited"], events["address.released"]) == (MOST_LINES, 1, 1)


def test_a_critical_finding_is_logged_however_many_lines_there_were(daemon: Daemon) -> None:
    many = [leak(1, network=f"net-{number}") for number in range(1500)]
    full = replace(leak(1), detector="exhausted_range", subject="kubenet", severity=Severity.CRITICAL)
    daemon.export(report_of(*many))
    daemon.export(report_of(*many))
    assert full.subject in {one.get("subject") for one in daemon.export(report_of(*many, full))}
