"""Events on a node, merged from every record that has times."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from agent.cleanup.journal import Entry
from agent.exporters.timeline import EventKind, timeline_document
from agent.model.devices import TransitionKind
from agent.model.finding import SkippedCheck
from agent.model.release import Verdict
from agent.model.snapshot import Pod, Snapshot, Unavailable
from agent.model.text import rfc3339
from tests import builders as b
from tests.builders import NOW, node, scanned, without
from tests.exporters.built import RELEASED

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
AWAY = Unavailable("device_plugins", "it gave no word")


def ago(span: timedelta) -> str:
    return rfc3339(NOW - span, "milliseconds")


def timeline_of(snapshot: Snapshot, *entries: Entry, **more: Any) -> dict[str, Any]:
    return timeline_document(scanned(snapshot), entries, **more)


def events(snapshot: Snapshot, *kinds: EventKind) -> list[dict[str, Any]]:
    return [event for event in timeline_of(snapshot)["events"] if event["what"] in kinds or not kinds]


def rejected(at: datetime | None, *, by_api: bool = False) -> Pod:
    pod = b.refused_pod("shop/render")
    assert pod.rejection is not None
    return replace(pod, rejection=replace(pod.rejection, at=at, by_api=by_api))


def test_a_rejection_without_a_time_is_only_counted() -> None:
    timeline = timeline_of(node(rejected(None)))
    assert timeline["undated_rejections"] == 1
    assert "rejected" not in {event["what"] for event in timeline["events"]}


def test_only_times_of_the_api_server_are_converted_to_the_nodes_clock() -> None:
    def at(pod: Pod) -> str:
        (event,) = events(replace(node(pod), api_skew=MINUTE), EventKind.REJECTED)
        return str(event["at"])

    assert at(rejected(NOW - HOUR, by_api=True)) == ago(HOUR + MINUTE)
    assert at(rejected(NOW - HOUR)) == ago(HOUR)
    assert at(rejected(datetime.min.replace(tzinfo=UTC), by_api=True)).startswith("0001")


def test_a_pod_rejected_in_the_second_of_the_start_comes_after_it() -> None:
    started = HOUR - timedelta(milliseconds=424)
    plugins = b.device_plugins(b.transition(TransitionKind.KUBELET_STARTED, ago=started), kubelet_socket=started)
    kinds = (EventKind.DEVICE_MANAGER_STARTED, EventKind.REJECTED)
    found = events(node(b.refused_pod("shop/render", ago=HOUR), device_plugins=plugins), *kinds)
    assert [event["what"] for event in found] == list(kinds)


def test_a_leak_has_its_cause_and_the_time_of_the_last_start_only_bounds_it_from_above() -> None:
    leaking = node(b.reservation("10.244.1.9"), processes=[b.processes(kubelet=HOUR)])
    (event,) = events(leaking, EventKind.LEAKED)
    assert (event["at"], event["exact"], event["subject"]) == (ago(HOUR), False, "kubenet/10.244.1.9")
    assert "likely cause: kubelet restart at 2026-03-26 19:00:00Z" in event["text"]
    assert event["text"].startswith("leak (began then or earlier): ")
    (at_boot,) = events(node(b.reservation("10.244.1.9", ""), processes=[b.processes(kubelet=HOUR)]), EventKind.LEAKED)
    assert at_boot["text"].startswith("leak (began then or later): ")
    unconfirmed = timeline_document(scanned(node(), leaking))
    assert "leaked" not in {event["what"] for event in unconfirmed["events"]}


def test_only_releases_and_restorations_come_from_the_journal() -> None:
    entry = replace(RELEASED, restored=NOW - MINUTE)
    found = [event for event in timeline_of(node(), entry)["events"] if event["source"] == "journal"]
    assert [(event["what"], event["at"], event["exact"]) for event in found] == [
        ("released", ago(HOUR), True), ("restored", ago(MINUTE), True),
    ]  # fmt: skip
    for verdict in (None, *(one for one in Verdict if one is not Verdict.RELEASED)):
        failed = timeline_of(node(), replace(RELEASED, verdict=verdict))
        assert "journal" not in {event["source"] for event in failed["events"]}


def test_events_of_all_sources_are_in_order_and_only_the_requested_duration_is_kept() -> None:
    late = b.transition(TransitionKind.REGISTERED, b.KVM, ago=HOUR - 10 * SECOND)
    snapshot = node(
        b.reservation("10.244.1.9", age=b.OLD),
        b.refused_pod("shop/render", ago=HOUR - 3 * SECOND),
        processes=[b.processes(booted=b.UPTIME, docker=b.UPTIME, kubelet=HOUR + SECOND)],
        device_plugins=b.device_plugins(
            b.transition(TransitionKind.KUBELET_STARTED, ago=HOUR), late, kubelet_socket=HOUR
        ),
    )
    listed = timeline_of(snapshot, replace(RELEASED, at=NOW - MINUTE))["events"]
    assert [event["at"] for event in listed] == sorted(event["at"] for event in listed)
    kinds = [event["what"] for event in listed]
    race = ["kubelet_started", "leaked", "device_manager_started", "rejected", "registered", "released"]
    assert [kind for kind in kinds if kind in race] == race
    assert timeline_of(snapshot, since=timedelta.max)["events"] == timeline_of(snapshot)["events"]
    assert [event["what"] for event in timeline_of(snapshot, since=HOUR - 3 * SECOND)["events"]] == race[3:5]
    assert timeline_of(snapshot, since=timedelta(0))["events"] == []


def test_what_events_may_be_missing_of_is_listed_and_nothing_else() -> None:
    for source in ("reservations", "containers", "pods", "processes", "device_plugins", "addresses"):
        timeline = timeline_of(without(node(b.reservation("10.244.1.9")), source))
        assert source in {one["source"] for one in timeline["unavailable"]}
    for complete in (without(node(), "cni_results"), without(node(), "node"), b.without_api(node())):
        assert timeline_of(complete)["unavailable"] == []
    dark = timeline_of(b.dark_node())
    assert dark["events"] == []
    assert {"source": "processes", "why": "it gave no word"} in dark["unavailable"]
    journal = timeline_document(scanned(node()), Unavailable("journal", "no"))
    assert journal["unavailable"] == [{"source": "journal", "why": "no"}]
    failed = replace(scanned(node()), gaps=(SkippedCheck("shared_ip", "KeyError", broken=True),))
    assert timeline_document(failed)["unavailable"] == [{"source": "shared_ip", "why": "KeyError"}]
