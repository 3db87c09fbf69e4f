"""Events on a node, merged from every record that has times."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from agent.cleanup.journal import Entry
from agent.exporters.text.timeline import timeline_table
from agent.exporters.timeline import timeline_document
from agent.model.devices import TransitionKind
from agent.model.finding import SkippedCheck
from agent.model.release import Verdict
from agent.model.snapshot import Pod, Snapshot, Unavailable
from tests import builders as b
from tests.builders import NOW, node, scanned, without
from tests.exporters.built import HOUR, RELEASED

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
LEAK = b.reservation("10.244.1.9")


def timeline_of(snapshot: Snapshot, *entries: Entry, **more: Any) -> dict[str, Any]:
    return timeline_document(scanned(snapshot), entries, **more)


def events(snapshot: Snapshot, *kinds: str) -> list[dict[str, Any]]:
    return [event for event in timeline_of(snapshot)["events"] if event["what"] in kinds]


def rejected(at: datetime | None, *, by_api: bool = False) -> Pod:
    pod = b.refused_pod("shop/render")
    assert pod.rejection is not None
    return replace(pod, rejection=replace(pod.rejection, at=at, by_api=by_api))


def test_only_times_of_the_api_server_are_converted_to_the_nodes_clock_and_without_one_a_rejection_is_counted() -> (
    None
):
    assert timeline_of(node(rejected(None)))["undated_rejections"] == 1
    assert events(node(rejected(None)), "rejected") == []
    for pod, expected in (
        (rejected(NOW - HOUR, by_api=True), "2026-03-26T18:59:00.000Z"),
        (rejected(NOW - HOUR), "2026-03-26T19:00:00.000Z"),
        (rejected(datetime.min.replace(tzinfo=UTC), by_api=True), "0001-01-01T00:00:00.000Z"),
    ):
        (event,) = events(replace(node(pod), api_skew=MINUTE), "rejected")
        assert event["at"] == expected


def test_a_leak_has_its_cause_and_the_time_of_the_last_start_only_bounds_it_from_above() -> None:
    restarted = [b.processes(kubelet=HOUR)]
    (event,) = events(node(LEAK, processes=restarted), "leaked")
    assert (event["at"], event["exact"], event["subject"]) == (
        "2026-03-26T19:00:00.000Z",
        False,
        "kubenet/10.244.1.9",
    )
    assert "likely cause: a kubelet restart (the last one: 2026-03-26 19:00:00Z)" in event["text"]
    assert event["text"].startswith("leak (began then or earlier): ")
    (at_boot,) = events(node(b.reservation("10.244.1.9", ""), processes=restarted), "leaked")
    assert at_boot["text"].startswith("leak (began then or later): ")
    unconfirmed = timeline_document(scanned(node(), node(LEAK, processes=restarted)))
    assert "leaked" not in {event["what"] for event in unconfirmed["events"]}


def test_only_releases_and_restorations_come_from_the_journal() -> None:
    def of_journal(entry: Entry) -> list[tuple[str, str, bool]]:
        found = (
            event for event in timeline_of(node(), entry)["events"] if event["source"] == "journal"
        )
        return [(event["what"], event["at"], event["exact"]) for event in found]

    released = ("released", "2026-03-26T19:00:00.000Z", True)
    assert of_journal(replace(RELEASED, restored=NOW)) == [
        released,
        ("restored", "2026-03-26T20:00:00.000Z", True),
    ]
    for verdict in (None, *Verdict):
        assert of_journal(replace(RELEASED, verdict=verdict)) == [released] * (
            verdict is Verdict.RELEASED
        )


def test_events_of_all_sources_are_in_order_and_only_the_requested_duration_is_kept() -> None:
    started = HOUR - timedelta(milliseconds=424)
    snapshot = node(
        LEAK,
        b.refused_pod(
            "shop/render", ago=HOUR
        ),  # in whole seconds, so it comes after the start that rejected it
        processes=[b.processes(booted=b.UPTIME, docker=b.UPTIME, kubelet=HOUR + SECOND)],
        device_plugins=b.device_plugins(
            b.transition(TransitionKind.KUBELET_STARTED, ago=started),
            b.transition(TransitionKind.REGISTERED, b.KVM, ago=HOUR - 10 * SECOND),
            kubelet_socket=started,
        ),
    )
    released = replace(RELEASED, at=NOW - MINUTE)

    def kinds(**more: Any) -> list[str]:
        return [event["what"] for event in timeline_of(snapshot, released, **more)["events"]]

    race = [
        "kubelet_started",
        "leaked",
        "device_manager_started",
        "rejected",
        "registered",
        "released",
    ]
    assert kinds()[-6:] == race
    assert kinds(since=timedelta.max) == kinds()
    assert kinds(since=HOUR - 5 * SECOND) == ["registered", "released"]
    assert kinds(since=timedelta(0)) == []


def test_what_events_may_be_missing_of_is_listed_and_nothing_else() -> None:
    def missing(snapshot: Snapshot) -> set[str]:
        return {source["source"] for source in timeline_of(snapshot)["unavailable"]}

    for source in (
        "reservations",
        "containers",
        "pods",
        "processes",
        "device_plugins",
        "addresses",
    ):
        assert source in missing(without(node(LEAK), source))
    for complete in (
        without(node(), "cni_results"),
        without(node(), "node"),
        b.without_api(node()),
    ):
        assert missing(complete) == set()
    assert timeline_of(b.dark_node())["events"] == []
    journal = timeline_document(scanned(node()), Unavailable("journal", "no"))
    assert journal["unavailable"] == [{"source": "journal", "why": "no"}]
    failed = replace(scanned(node()), gaps=(SkippedCheck("shared_ip", "KeyError", broken=True),))
    assert timeline_document(failed)["unavailable"] == [{"source": "shared_ip", "why": "KeyError"}]


def test_what_happened_again_to_the_same_is_named_once() -> None:
    starts = [
        b.transition(TransitionKind.KUBELET_STARTED, ago=number * MINUTE) for number in range(1, 7)
    ]
    snapshot = node(device_plugins=b.device_plugins(*starts))
    started = events(snapshot, "device_manager_started")
    assert len(started) == 7
    document = timeline_of(node()) | {"events": started}
    text = " ".join(timeline_table(document, None).split())
    assert "… and 4 more device_manager_started until this time: kubelet (-v lists each)" in text


def test_a_storm_of_many_reasons_fits_a_screen_and_names_every_reason_that_fits() -> None:
    storm = [
        {
            "at": "2026-03-26T19:59:00.000Z",
            "exact": True,
            "what": "rejected",
            "subject": f"shop/{number}",
            "text": f"pod shop/{number} was rejected: {reason}",
        }
        for number in range(200)
        for reason in [f"OutOfcpu, used {number}" if number % 2 else "no device"]
    ]
    document = timeline_of(node()) | {"events": storm}
    lines = timeline_table(document, None).splitlines()
    rows = [line for line in lines if "was rejected" in line]
    assert (len(rows), sum("no device" in row for row in rows)) == (12, 3)
    assert "… and 188 more rejected until this time: " in " ".join(lines)
    assert len(timeline_table(document, None, verbose=True).splitlines()) > 200
