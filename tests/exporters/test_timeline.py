"""Events on a node, merged from every record that has times."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from agent.cleanup.journal import RESERVATION, Entry, FileImage
from agent.exporters.timeline import Event, EventKind, Timeline, build_timeline
from agent.model.devices import TransitionKind
from agent.model.finding import Gap
from agent.model.rejections import RejectionCause, RejectionKind
from agent.model.release import Verdict
from agent.model.snapshot import Known, Pod, Snapshot, Unavailable
from tests.builders import (
    KVM,
    KVM_SOCKET,
    NOW,
    OLD,
    UPTIME,
    dark_node,
    device_plugins,
    node,
    processes,
    refused_pod,
    reservation,
    scanned,
    transition,
    unavailable,
    without,
    without_api,
)

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
FILE = FileImage(RESERVATION, "kubenet", "10.244.1.9", b"", 0o644, 0, 0, 7, 0)
ENTRY = Entry("e-1", NOW - HOUR, "run", "9" * 64, "shop/cart", (FILE,), Verdict.RELEASED)
UNAVAILABLE = Unavailable("journal", "it gave no word")


def timeline_of(snapshot: Snapshot, *entries: Entry) -> Timeline:
    return build_timeline(scanned(snapshot), entries)


def events(snapshot: Snapshot, *kinds: EventKind) -> list[Event]:
    return [event for event in timeline_of(snapshot).events if event.kind in kinds or not kinds]


def rejected(pod: Pod, at: datetime | None, *, by_api: bool = False) -> Pod:
    assert pod.rejection is not None
    return replace(pod, rejection=replace(pod.rejection, at=at, by_api=by_api))


def test_the_node_docker_and_the_kubelet_have_start_events() -> None:
    snapshot = node(processes=[processes(booted=3 * HOUR, docker=2 * HOUR, kubelet=HOUR)], device_plugins=UNAVAILABLE)
    assert [(event.kind, NOW - event.at, event.exact) for event in events(snapshot)] == [
        (EventKind.BOOTED, 3 * HOUR, True),
        (EventKind.DOCKER_STARTED, 2 * HOUR, True),
        (EventKind.KUBELET_STARTED, HOUR, True),
    ]


def test_a_process_that_does_not_run_has_no_start_event() -> None:
    snapshot = node(processes=[processes(booted=HOUR, docker=None, kubelet=None)], device_plugins=UNAVAILABLE)
    assert [event.kind for event in events(snapshot)] == [EventKind.BOOTED]


@pytest.mark.parametrize("happening", TransitionKind)
def test_every_device_transition_has_an_event(happening: TransitionKind) -> None:
    one = transition(happening, KVM, ago=HOUR, socket=KVM_SOCKET, exact=False)
    timeline_of = [event for event in events(node(device_plugins=device_plugins(one))) if event.at == NOW - HOUR]
    (event,) = (event for event in timeline_of if event.source == "device_plugins")
    assert not event.exact
    assert event.kind.value in {happening.value, "device_manager_started"}
    assert happening is TransitionKind.KUBELET_STARTED or KVM in event.text


def test_a_rejected_pod_has_what_was_missing() -> None:
    (event,) = events(node(refused_pod("shop/render", ago=MINUTE)), EventKind.REJECTED)
    assert (event.at, event.exact, event.subject, event.source) == (NOW - MINUTE, False, "shop/render", "pods")
    timeline_of, _, verdict = event.text.partition("; ")
    assert (
        timeline_of
        == "pod shop/render was rejected: too few devices of devices.kubevirt.io/kvm (requested 1, available 0)"
    )
    assert verdict in {f"{cause.value}, stuck" for cause in RejectionCause}


@pytest.mark.parametrize("refused", RejectionKind)
def test_every_kind_of_rejection_has_a_text(refused: RejectionKind) -> None:
    (event,) = events(node(refused_pod("shop/render", refused=refused)), EventKind.REJECTED)
    assert KVM in event.text


def test_a_long_message_is_cut() -> None:
    pod = refused_pod("shop/render", refused=RejectionKind.OTHER)
    assert pod.rejection is not None
    pod = replace(pod, rejection=replace(pod.rejection, message="x" * 5000))
    (event,) = events(node(pod), EventKind.REJECTED)
    assert len(event.text) < 300
    assert "x...; unverified" in event.text


def test_a_rejection_without_a_time_is_only_counted() -> None:
    timeline = timeline_of(node(rejected(refused_pod("shop/render"), None)))
    assert timeline.undated == 1
    assert EventKind.REJECTED not in {event.kind for event in timeline.events}


def test_times_of_the_api_server_are_converted_to_the_nodes_clock() -> None:
    pod = rejected(refused_pod("shop/render"), NOW - HOUR, by_api=True)
    (event,) = events(replace(node(pod), api_skew=MINUTE), EventKind.REJECTED)
    assert event.at == NOW - HOUR - MINUTE


def test_times_of_the_kubelet_are_not_converted() -> None:
    pod = rejected(refused_pod("shop/render"), NOW - HOUR)
    (event,) = events(replace(node(pod), api_skew=MINUTE), EventKind.REJECTED)
    assert event.at == NOW - HOUR


def test_a_time_that_cannot_be_converted_is_kept() -> None:
    pod = rejected(refused_pod("shop/render"), datetime.min.replace(tzinfo=UTC), by_api=True)
    (event,) = events(replace(node(pod), api_skew=MINUTE), EventKind.REJECTED)
    assert event.at.year == 1


def test_a_pod_rejected_in_the_second_of_the_start_comes_after_it() -> None:
    started = transition(TransitionKind.KUBELET_STARTED, ago=HOUR - timedelta(milliseconds=424))
    pod = refused_pod("shop/render", ago=HOUR)
    plugins = device_plugins(started, kubelet_socket=HOUR - timedelta(milliseconds=424))
    kinds = (EventKind.DEVICE_MANAGER_STARTED, EventKind.REJECTED)
    assert [event.kind for event in events(node(pod, device_plugins=plugins), *kinds)] == list(kinds)


def test_a_leak_has_its_earliest_time_and_its_cause() -> None:
    snapshot = node(reservation("10.244.1.9"), processes=[processes(kubelet=HOUR)])
    (event,) = events(snapshot, EventKind.LEAKED)
    assert (event.at, event.exact, event.subject) == (NOW - HOUR, False, "kubenet/10.244.1.9")
    assert "likely cause: kubelet restart at 2026-03-26 19:00:00Z" in event.text


def test_an_unconfirmed_leak_has_no_event() -> None:
    report = scanned(node(), node(reservation("10.244.1.9")))
    assert EventKind.LEAKED not in {event.kind for event in build_timeline(report, ()).events}


def test_releases_and_restorations_come_from_the_journal() -> None:
    entry = replace(ENTRY, restored=NOW - MINUTE)
    listed = [event for event in timeline_of(node(), entry).events if event.source == "journal"]
    assert [(event.kind, event.at, event.exact) for event in listed] == [
        (EventKind.RELEASED, NOW - HOUR, True),
        (EventKind.RESTORED, NOW - MINUTE, True),
    ]
    assert listed[0].text == "10.244.1.9 of pod shop/cart was released by `run`, journal entry e-1"


@pytest.mark.parametrize("verdict", [None, *(one for one in Verdict if one is not Verdict.RELEASED)])
def test_a_failed_release_has_no_event(verdict: Verdict | None) -> None:
    listed = timeline_of(node(), replace(ENTRY, verdict=verdict)).events
    assert "journal" not in {event.source for event in listed}


def test_events_of_all_sources_are_in_order() -> None:
    late = transition(TransitionKind.REGISTERED, KVM, ago=HOUR - 10 * SECOND)
    snapshot = node(
        reservation("10.244.1.9", age=OLD),
        refused_pod("shop/render", ago=HOUR - 3 * SECOND),
        processes=[processes(booted=UPTIME, docker=UPTIME, kubelet=HOUR + SECOND)],
        device_plugins=device_plugins(transition(TransitionKind.KUBELET_STARTED, ago=HOUR), late, kubelet_socket=HOUR),
    )
    listed = timeline_of(snapshot, replace(ENTRY, at=NOW - MINUTE)).events
    assert [event.at for event in listed] == sorted(event.at for event in listed)
    race = (
        EventKind.KUBELET_STARTED,
        EventKind.LEAKED,
        EventKind.DEVICE_MANAGER_STARTED,
        EventKind.REJECTED,
        EventKind.REGISTERED,
    )
    assert [event.kind for event in listed if event.kind in race] == list(race)
    assert listed[-1].kind is EventKind.RELEASED


def test_at_one_time_starts_come_first() -> None:
    snapshot = node(processes=[processes(booted=HOUR, docker=HOUR, kubelet=HOUR)], device_plugins=UNAVAILABLE)
    kinds = [event.kind for event in events(snapshot)]
    assert kinds == [EventKind.BOOTED, EventKind.DOCKER_STARTED, EventKind.KUBELET_STARTED]


def test_only_the_requested_duration_is_kept() -> None:
    timeline = timeline_of(
        node(processes=[processes(booted=3 * HOUR, docker=2 * HOUR, kubelet=HOUR)], device_plugins=UNAVAILABLE)
    )
    assert [event.kind for event in timeline.last(2 * HOUR).events] == [
        EventKind.DOCKER_STARTED,
        EventKind.KUBELET_STARTED,
    ]
    assert timeline.last(timedelta.max).events == timeline.events
    assert timeline.last(timedelta(0)).events == ()


@pytest.mark.parametrize("source", ["reservations", "containers", "pods", "processes", "device_plugins", "addresses"])
def test_unavailable_sources_of_events_are_listed(source: str) -> None:
    timeline = timeline_of(without(node(reservation("10.244.1.9")), source))
    assert not timeline.complete
    assert source in {one.source for one in timeline.unavailable}


@pytest.mark.parametrize("source", ["cni_results", "node"])
def test_sources_without_times_are_not_listed(source: str) -> None:
    assert timeline_of(without(node(), source)).complete


def test_disabled_sources_are_not_listed() -> None:
    assert timeline_of(without_api(node())).complete


def test_an_unavailable_journal_is_listed() -> None:
    timeline = build_timeline(scanned(node()), UNAVAILABLE)
    assert timeline.unavailable == (UNAVAILABLE,)


def test_a_failed_detector_is_listed() -> None:
    report = replace(scanned(node()), gaps=(Gap("shared_ip", "KeyError: 'a bug'", broken=True),))
    assert build_timeline(report, ()).unavailable == (Unavailable("shared_ip", "KeyError: 'a bug'"),)


def test_without_data_there_are_no_events_and_the_sources_are_listed() -> None:
    timeline = timeline_of(dark_node())
    assert timeline.events == ()
    assert unavailable("processes") in timeline.unavailable


def test_a_damaged_history_is_a_warning() -> None:
    snapshot = node(device_plugins=device_plugins(trouble="not JSON"))
    assert isinstance(snapshot.device_plugins, Known)
    timeline = build_timeline(scanned(snapshot), (), ["line 3: no JSON"])
    assert timeline.warnings == ("device_plugins: not JSON", "journal: line 3: no JSON")
    assert timeline.complete
