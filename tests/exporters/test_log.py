"""Log lines: changes, not rounds."""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import structlog

from agent.checks import engine
from agent.checks.confirm import ConfirmationState
from agent.exporters.log import LogExporter, configure
from agent.exporters.text.clean import WHEN_HALTED
from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.finding import Gap
from agent.model.release import Cleaning, Reason, Refusal, Verdict
from agent.model.report import Report
from agent.model.snapshot import SOURCES, NotRequested, Snapshot, Unavailable
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

LOST = reservation("10.244.1.9")


class Daemon:
    """Rounds, and the lines that each of them adds."""

    def __init__(self, capture: structlog.testing.LogCapture) -> None:
        self._capture, self._seconds = capture, 0
        self._memory: ConfirmationState | None = None
        self._exporter = LogExporter(structlog.get_logger())

    def round(self, snapshot: Snapshot) -> list[dict[str, Any]]:
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
    """Look till a finding is believed; return the lines of that round."""
    for _ in range(2):
        assert daemon.round(snapshot) == []
    return daemon.round(snapshot)


def test_a_healthy_node_is_silent(daemon: Daemon) -> None:
    assert [daemon.round(node()) for _ in range(5)] == [[]] * 5


def test_a_candidate_is_no_news(daemon: Daemon) -> None:
    assert daemon.round(node(LOST)) == []
    assert daemon.round(node()) == []


def test_a_confirmed_finding_is_told_once_with_what_is_known_of_it(daemon: Daemon) -> None:
    sick = node(LOST, cni_result(GONE, "shop/cart", CIDR))
    (line,) = confirmed(daemon, sick)
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
    assert [daemon.round(sick) for _ in range(3)] == [[]] * 3


def test_a_finding_that_is_gone_is_closed(daemon: Daemon) -> None:
    confirmed(daemon, node(LOST))
    assert daemon.round(node()) == [
        {
            "event": "finding.closed",
            "log_level": "info",
            "detector": "leaked_reservation",
            "subject": "kubenet/10.244.1.9",
        }
    ]
    assert daemon.round(node()) == []


def test_what_is_only_not_seen_is_not_closed(daemon: Daemon) -> None:
    confirmed(daemon, node(LOST))
    assert events(daemon.round(without(node(LOST), "containers"))) == ["source.unavailable"]
    assert daemon.round(without(node(LOST), "containers")) == []
    assert events(daemon.round(node(LOST))) == ["source.recovered"]
    assert daemon.round(node(LOST)) == []


def test_what_a_node_does_not_have_is_said_once_and_is_no_fault(daemon: Daemon) -> None:
    no_docker = NotRequested("containers", "the runtime of this node is containerd://1.6.20, not docker")
    bare = node(containers=no_docker, checkpoints=NotRequested("checkpoints", no_docker.why))
    assert [(line["event"], line["log_level"], line["source"]) for line in daemon.round(bare)] == [
        ("source.not_requested", "info", source) for source in ("checkpoints", "containers")
    ]
    assert [daemon.round(bare) for _ in range(3)] == [[]] * 3


def test_what_turns_out_not_to_be_there_has_not_spoken_again(daemon: Daemon) -> None:
    assert events(daemon.round(without(node(), "containers"))) == ["source.unavailable"]
    assert events(daemon.round(node(containers=NotRequested("containers", "no docker")))) == ["source.not_requested"]


def test_what_an_option_leaves_alone_is_no_news(daemon: Daemon) -> None:
    assert (
        daemon.round(node(pods=NotRequested("pods", "--api=off"), addresses=NotRequested("addresses", "not needed")))
        == []
    )


def test_what_went_away_in_a_gap_is_closed_when_the_detector_sees_again(daemon: Daemon) -> None:
    confirmed(daemon, node(LOST))
    daemon.round(dark_node())
    lines = daemon.round(node())
    assert set(events(lines)) == {"source.recovered", "finding.closed"}
    assert events(lines)[-1] == "finding.closed"


def test_two_findings_with_one_subject_are_two(daemon: Daemon) -> None:
    confirmed(daemon, node(LOST))
    assert events(daemon.round(node(reservation(LOST.ip, "8" * 64)))) == ["finding.closed"]
    daemon.round(node(reservation(LOST.ip, "8" * 64)))
    assert events(daemon.round(node(reservation(LOST.ip, "8" * 64)))) == ["finding.opened"]


# Device plugins

PAST = (
    transition(TransitionKind.KUBELET_STARTED, ago=UPTIME),
    transition(TransitionKind.REGISTERED, KVM, ago=UPTIME),
)


def after(*more: DeviceTransition) -> Snapshot:
    """The kubelet and a plugin started with the node; this happened since."""
    plugins = device_plugins(*PAST, *more, kubelet_socket=None)
    return node(device_plugins=plugins)


def test_what_happened_before_the_first_look_is_told_to_nobody(daemon: Daemon) -> None:
    assert [daemon.round(after()) for _ in range(3)] == [[]] * 3


def test_each_thing_that_happens_to_a_plugin_is_told_once(daemon: Daemon) -> None:
    daemon.round(after())
    seconds = iter(range(16, 30))

    def now(what: TransitionKind, resource: str = "", *, socket: str = "", exact: bool = True) -> DeviceTransition:
        return transition(what, resource, socket=socket, exact=exact, ago=-timedelta(seconds=next(seconds)))

    news = (
        now(TransitionKind.KUBELET_STARTED),
        now(TransitionKind.SOCKET_APPEARED, socket=KVM_SOCKET),
        now(TransitionKind.REGISTERED, KVM),
        now(TransitionKind.LOST, KVM, exact=False),
    )
    lines = daemon.round(after(*news))
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
    assert daemon.round(after(*news)) == []


def test_what_no_history_keeps_is_not_told_again_by_every_look(daemon: Daemon) -> None:
    daemon.round(after())

    def seen(ago: int) -> Snapshot:
        return after(transition(TransitionKind.LOST, KVM, exact=False, ago=-timedelta(seconds=ago)))

    assert events(daemon.round(seen(30))) == ["device_plugin.lost"]
    assert [daemon.round(seen(ago)) for ago in (45, 60)] == [[], []]


def test_a_plugin_that_comes_and_goes_is_told_each_time(daemon: Daemon) -> None:
    daemon.round(after())
    history: list[DeviceTransition] = []
    for ago, what in enumerate([TransitionKind.LOST, TransitionKind.REGISTERED] * 2, 30):
        history.append(transition(what, KVM, exact=False, ago=-timedelta(seconds=ago)))
        assert len(daemon.round(after(*history))) == 1


def test_a_history_that_was_silent_at_first_is_no_news_when_it_speaks(daemon: Daemon) -> None:
    daemon.round(without(after(), "device_plugins"))
    assert events(daemon.round(after())) == ["source.recovered"]


def test_what_happened_while_it_was_silent_is_told_when_it_speaks(daemon: Daemon) -> None:
    daemon.round(after())
    daemon.round(without(after(), "device_plugins"))
    lost = transition(TransitionKind.LOST, KVM, ago=-timedelta(seconds=40))
    assert set(events(daemon.round(after(lost)))) == {"source.recovered", "device_plugin.lost"}


# Sources


def test_a_source_that_falls_silent_is_told_once_and_when_it_speaks_again(daemon: Daemon) -> None:
    assert daemon.round(without(node(), "containers")) == [
        {"event": "source.unavailable", "log_level": "error", "source": "containers", "why": "it gave no word"}
    ]
    assert daemon.round(without(node(), "containers")) == []
    assert daemon.round(node()) == [{"event": "source.recovered", "log_level": "info", "source": "containers"}]


def test_a_reason_that_counts_is_no_change(daemon: Daemon) -> None:
    assert events(daemon.round(node(pods=Unavailable("pods", "no word for 120 s")))) == ["source.unavailable"]
    assert daemon.round(node(pods=Unavailable("pods", "no word for 135 s"))) == []


def test_in_the_dark_each_source_is_told_once(daemon: Daemon) -> None:
    lines = daemon.round(dark_node())
    assert sorted(line["source"] for line in lines) == sorted(SOURCES)
    assert daemon.round(dark_node()) == []


def test_two_networks_fail_apart(daemon: Daemon) -> None:
    stores = node(unread_networks=["storage"]).reservations
    (storage,) = (store for store in stores if store.network == "storage")
    second = replace(storage, network="other", reading=Unavailable("reservations", "/net/other does not exist"))
    both = replace(node(), reservations=(*stores, second))
    assert events(daemon.round(replace(node(), reservations=stores))) == ["source.unavailable"]
    (line,) = daemon.round(both)
    assert line["why"] == "/net/other does not exist"


# Clock, and our own bugs


def test_a_clock_that_was_set_is_told(daemon: Daemon) -> None:
    daemon.round(node())
    assert events(daemon.round(node(clock_set_by=timedelta(hours=2)))) == ["clock.stepped"]


def test_a_detector_that_fails_is_told_once(daemon: Daemon) -> None:
    report, _ = engine.run(node(), None, grace=GRACE, confirm_after=timedelta(0))
    broken = replace(report, gaps=(Gap("shared_ip", "KeyError: 'a bug'", broken=True),))
    assert daemon.export(broken) == [
        {"event": "detector.failed", "log_level": "error", "detector": "shared_ip", "why": "KeyError: 'a bug'"}
    ]
    assert daemon.export(broken) == []


# Cleaning


class Cleaner:
    """Rounds of a node whose leak was told already, and what cleaning adds to the log."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        confirmed(daemon, node(LOST))
        _, memory = engine.run(node(LOST), None, grace=GRACE, confirm_after=timedelta(0))
        self._leaked, _ = engine.run(node(LOST), memory, grace=GRACE, confirm_after=timedelta(0))
        self._healthy, _ = engine.run(node(), None, grace=GRACE, confirm_after=timedelta(0))
        assert daemon.export(self._leaked) == []

    def round(self, one: Cleaning) -> list[dict[str, Any]]:
        return self._daemon.export(replace(self._leaked, cleaning=one))

    def healthy_round(self, one: Cleaning) -> list[dict[str, Any]]:
        lines = self._daemon.export(replace(self._healthy, cleaning=one))
        return [line for line in lines if line["event"] != "finding.closed"]


@pytest.fixture
def cleaner(daemon: Daemon) -> Cleaner:
    return Cleaner(daemon)


ABOUT = {"network": "kubenet", "ip": "10.244.1.9", "container": GONE}


def test_a_release_is_told_with_where_it_is_written_down(cleaner: Cleaner) -> None:
    assert cleaner.round(cleaning(released())) == [
        {"event": "address.released", "log_level": "info", **ABOUT, "pod": "shop/cart", "entry": ENTRY}
    ]


def test_each_address_of_a_sandbox_is_told_and_what_was_left_of_it(cleaner: Cleaner) -> None:
    lines = cleaner.round(cleaning(released(*DUAL, why="left in libcni's cache: no")))
    assert [(line["event"], line["ip"], line["why"]) for line in lines] == [
        ("address.released", "10.244.1.9", "left in libcni's cache: no"),
        ("address.released", "fd00::9", "left in libcni's cache: no"),
    ]


def test_a_release_that_failed_is_told_once_until_it_fails_otherwise(cleaner: Cleaner) -> None:
    busy, failed = outcome(Verdict.BUSY, why="the lock is held"), outcome(Verdict.FAILED, why="read-only")
    assert cleaner.round(cleaning(busy)) == [
        {
            "event": "release.failed", "log_level": "warning", **ABOUT, "pod": "shop/cart",
            "verdict": "busy", "why": "the lock is held",
        }
    ]  # fmt: skip
    assert [cleaner.round(cleaning(busy)) for _ in range(3)] == [[]] * 3
    assert events(cleaner.round(cleaning(failed))) == ["release.failed"]
    assert cleaner.round(cleaning(failed)) == []


@pytest.mark.parametrize("verdict", [Verdict.CHANGED, Verdict.GONE])
def test_a_race_that_was_lost_is_told(cleaner: Cleaner, verdict: Verdict) -> None:
    (line,) = cleaner.round(cleaning(outcome(verdict, why="it is another")))
    assert (line["event"], line["verdict"], line["why"]) == ("release.failed", verdict.value, "it is another")


def test_a_refusal_is_told_once_for_each_reason_though_its_words_may_count(cleaner: Cleaner) -> None:
    unsettled = [Refusal(Reason.UNSETTLED, f"docker started {n} s ago") for n in range(4)]
    assert cleaner.round(cleaning(refused(unsettled[0], BUDGET))) == [
        {
            "event": "release.refused", "log_level": "info", **ABOUT,
            "reason": "unsettled", "why": "docker started 0 s ago",
        }
    ]  # fmt: skip
    assert [cleaner.round(cleaning(refused(one))) for one in unsettled] == [[]] * 4
    assert [line["reason"] for line in cleaner.round(cleaning(refused(BUDGET)))] == ["over_budget"]
    assert [line["reason"] for line in cleaner.round(cleaning(refused(unsettled[0])))] == ["unsettled"]


def test_a_dry_run_tells_once_what_it_withholds(cleaner: Cleaner) -> None:
    withheld = cleaning(outcome(Verdict.WOULD_RELEASE), applied=False)
    assert cleaner.round(withheld) == [
        {"event": "release.dry_run", "log_level": "info", **ABOUT, "pod": "shop/cart"}
    ]  # fmt: skip
    assert [cleaner.round(withheld) for _ in range(3)] == [[]] * 3


def test_what_is_no_leak_is_not_told_to_be_refused(cleaner: Cleaner) -> None:
    # Between the end of a container and that of its address every pod looks like this.
    assert cleaner.healthy_round(cleaning(refused(CANDIDATE))) == []
    assert cleaner.healthy_round(cleaning(refused(Refusal(Reason.TEARDOWN_PENDING, "a checkpoint")))) == []


def test_a_round_that_could_not_judge_forgets_nothing(cleaner: Cleaner) -> None:
    cleaner.round(cleaning(refused(BUDGET)))
    assert cleaner.round(cleaning(unavailable=(Unavailable("containers", "silent"),))) == []
    assert cleaner.round(cleaning(refused(BUDGET))) == []


def test_an_address_that_was_no_candidate_meanwhile_is_told_anew(cleaner: Cleaner) -> None:
    cleaner.round(cleaning(refused(BUDGET)))
    assert cleaner.round(cleaning()) == []
    assert events(cleaner.round(cleaning(refused(BUDGET)))) == ["release.refused"]


def test_an_address_that_leaks_again_is_another(cleaner: Cleaner) -> None:
    cleaner.round(cleaning(released()))
    again = replace(LOST, inode=LOST.inode + 1)
    assert events(cleaner.round(cleaning(released(again)))) == ["address.released"]


def test_cleaning_that_stops_itself_is_told_once_with_what_to_do(cleaner: Cleaner) -> None:
    halted = cleaning(halted="container 9999 is there again")
    assert cleaner.round(halted) == [
        {
            "event": "cleanup.halted", "log_level": "error",
            "why": "container 9999 is there again", "do": WHEN_HALTED,
        }
    ]  # fmt: skip
    assert [cleaner.round(halted) for _ in range(3)] == [[]] * 3


def test_damage_of_the_journal_is_told_once(cleaner: Cleaner) -> None:
    damaged = cleaning(warnings=("journal: line 3",))
    assert cleaner.round(damaged) == [
        {"event": "cleanup.warning", "log_level": "warning", "text": "journal: line 3"}
    ]  # fmt: skip
    assert cleaner.round(damaged) == []
    assert [line["text"] for line in cleaner.round(cleaning(warnings=("journal: line 3", "journal: line 4")))] == [
        "journal: line 4"
    ]


def test_rounds_with_nothing_to_clean_are_silent(cleaner: Cleaner) -> None:
    assert [cleaner.healthy_round(cleaning()) for _ in range(3)] == [[]] * 3


# How lines look


@pytest.fixture
def restored() -> Iterator[None]:
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("restored")
def test_lines_are_json_with_what_matters_first(capsys: pytest.CaptureFixture[str]) -> None:
    log = configure("json")
    log.debug("round.done")
    log.warning("finding.opened", detector="shared_ip", text="ünïcode\nand a second line")
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    tree = json.loads(line)
    assert list(tree) == ["timestamp", "level", "event", "detector", "text"]
    assert (tree["level"], tree["event"]) == ("warning", "finding.opened")
    assert tree["timestamp"].endswith("Z")


@pytest.mark.usefixtures("restored")
def test_away_from_a_terminal_text_has_no_colours(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_restored_etcd_and_a_server_that_lags_are_told_once_as_long_as_they_go_on(daemon: Daemon) -> None:
    restored, lags = shown(Evidence.RV_RESET), shown(Evidence.OLDER_LIST)
    lines = daemon.round(node(watches=[restored, lags]))
    assert [(line["event"], line["log_level"]) for line in lines] == [
        ("watch.reset", "warning"), ("watch.lagging", "info"),
    ]  # fmt: skip
    assert (lines[0]["resource"], lines[0]["before"], lines[0]["version"]) == ("pods", 40, 7)
    assert daemon.round(node(watches=[replace(restored, count=9), lags])) == []
    assert daemon.round(without(node(), "watches"))[0]["event"] == "source.unavailable"
    again = replace(restored, first=restored.first + timedelta(hours=3))
    assert events(daemon.round(node(watches=[again, lags]))) == ["source.recovered", "watch.reset"]


def test_what_is_held_against_the_server_is_told_as_a_finding(daemon: Daemon) -> None:
    (line,) = confirmed(daemon, node(watches=[shown()]))
    assert (line["event"], line["detector"], line["subject"]) == (
        "finding.opened", "replayed_watch", "pods deleted_below",
    )  # fmt: skip
    assert daemon.round(node(watches=[replace(shown(), count=2)])) == []
