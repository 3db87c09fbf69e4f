"""The Events of a sync: confirmed findings, one for each kind and object, and releases; and how often they are sent."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from agent.model.finding import Finding, Severity
from agent.model.release import Verdict
from agent.model.snapshot import Pod, Snapshot
from tests.builders import KVM, node, pod, refused_pod, reservation, sandbox, scanned, unavailable
from tests.exporters.cleanings import CANDIDATE, DUAL, cleaning, many, outcome, refused, released
from tests.kube_events.agent import stored
from tests.kube_events.syncs import INTERVAL, Syncs, confirmed, leak
from tests.strategies import nodes

INFO, WARNING, CRITICAL = Severity.INFO, Severity.WARNING, Severity.CRITICAL
EVERY = timedelta(minutes=5)  # A lasting Event is sent again so often
ON_NODE = {"apiVersion": "v1", "kind": "Node", "name": "worker-1", "uid": "worker-1"}


def events_of(*findings: Finding, pods: tuple[Pod, ...] | None = None) -> list[dict[str, Any]]:
    with stored() as agent:
        return agent.events_of(confirmed(*findings, pods=pods))


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["involvedObject"]["kind"] for event in events]


def test_only_a_confirmed_finding_has_an_event() -> None:
    syncs, lost = Syncs(), node(reservation("10.244.1.9"))
    with stored() as agent:
        assert [agent.events_of(syncs.report(lost)) for _ in range(2)] == [[], []]
        (event,) = agent.events_of(syncs.report(lost))
    message = event.pop("message")
    assert message.startswith(
        "10.244.1.9 is reserved for container 999999999999, which no longer exists"
    )
    assert event == {
        "apiVersion": "v1",
        "kind": "Event",
        # The same in every process.
        "metadata": {"name": "worker-1.nodeleak.ebfed3357c8fbfa8", "namespace": "default"},
        "involvedObject": ON_NODE,
        "reason": "LeakedReservation",
        "type": "Warning",
        "source": {"component": "nodeleak", "host": "worker-1"},
        "reportingComponent": "nodeleak",
        "reportingInstance": "worker-1",
        "firstTimestamp": "2026-03-26T20:00:45Z",
        "lastTimestamp": "2026-03-26T20:00:45Z",
        "count": 1,
    }


def test_leaks_of_a_network_are_one_event_with_their_number_and_five_of_them() -> None:
    listed = " | ".join(f"10.244.1.{n} leaked" for n in range(2, 7))
    for last, text in (
        (9, f"7 findings in kubenet: {listed} | and 2 more"),
        (7, f"5 findings in kubenet: {listed}"),
    ):
        assert events_of(*(leak(n) for n in range(2, last)))[0]["message"] == text
    # Networks, resources and detectors have events of their own.
    late = Finding("late_device_plugin", KVM, "late", resource=KVM)
    several = events_of(leak(2), leak(3), leak(2, network="storage"), late)
    assert [event["reason"] for event in several] == [
        "LateDevicePlugin",
        "LeakedReservation",
        "LeakedReservation",
    ]
    # Informational findings are normal events.
    for severities, kind in (
        ((INFO,), "Normal"),
        ((CRITICAL,), "Warning"),
        ((INFO, WARNING), "Warning"),
    ):
        (event,) = events_of(*(leak(n, severity=severity) for n, severity in enumerate(severities)))
        assert event["type"] == kind


def test_an_affected_pod_has_an_event_in_its_namespace() -> None:
    sharing = node(sandbox("4" * 64, "shop/cart"), pod("shop/cart", "10.244.1.2"))
    with stored() as agent:
        events = [
            event for event in agent.events_of(scanned(sharing)) if event["reason"] == "SharedIp"
        ]
        on_node, *on_pods = (event["involvedObject"] for event in events)
        assert on_node == ON_NODE
        assert on_pods == [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": "shop",
                "name": name,
                "uid": f"uid of shop/{name}",
            }
            for name in ("web", "cart")
        ]
        paths = [path.partition(".nodeleak.")[0] for path in agent.store.events if "/shop/" in path]
    assert paths == ["/api/v1/namespaces/shop/events/web", "/api/v1/namespaces/shop/events/cart"]


def test_which_pods_have_an_event() -> None:
    waits = Finding("detached_volume", "volume v", "m", affected=("uid of shop/web",))
    unreserved = Finding(
        "unreserved_pod_ip", "10.244.1.2 of pod shop/web", "m", identity=("uid of shop/web",)
    )
    storm = node(
        *(refused_pod(f"shop/render-{n}", controller="ReplicaSet/render") for n in range(7))
    )
    for why, report, expected in (
        ("one that waits for a volume", confirmed(waits), ["Node", "Pod"]),
        ("one without a reservation", confirmed(unreserved), ["Node", "Pod"]),
        ("none where pods are unknown", confirmed(unreserved, pods=unavailable("pods")), ["Node"]),
        (
            "not the successor of a leaked address's pod",
            confirmed(replace(leak(9), pod="shop/web")),
            ["Node"],
        ),
        ("each of many", scanned(storm), ["Node", *["Pod"] * 7]),
    ):
        with stored() as agent:
            assert kinds(agent.events_of(report)) == expected, why


def test_releases_of_a_network_are_one_event_with_their_number() -> None:
    cleaned = cleaning(
        released(*DUAL),
        *(released(candidate) for candidate in many(5)),
        refused(CANDIDATE),
        outcome(Verdict.GONE),
    )
    with stored() as agent:
        (event,) = agent.events_of(replace(confirmed(), cleaning=cleaned))
        (single,) = agent.events_of(
            replace(confirmed(later=INTERVAL), cleaning=cleaning(released()))
        )
    assert (event["involvedObject"], event["reason"], event["type"]) == (
        ON_NODE,
        "ReleasedReservation",
        "Normal",
    )
    assert event["message"].startswith(
        "released leaked addresses in kubenet (7): 10.244.1.9 (of pod shop/cart) | "
    )
    assert event["message"].endswith(" | and 2 more")
    assert (
        single["message"]
        == "released leaked addresses in kubenet (1): 10.244.1.9 (of pod shop/cart)"
    )


@given(st.text(st.sampled_from("abz09-."), min_size=1, max_size=253))
@example("-" * 251)
def test_an_events_name_is_valid(name: str) -> None:
    affected = pod(f"shop/a{name[:251]}z")
    _, on_pod = events_of(
        Finding("shared_ip", "s", "m", identity=(affected.uid,)), pods=(affected,)
    )
    named = on_pod["metadata"]["name"]
    assert len(named) <= 253
    assert named.startswith("a")
    assert "-." not in named[195:]


@given(st.lists(st.text(max_size=600), min_size=1, max_size=12), st.text(max_size=300))
def test_a_message_is_one_line_that_fits(texts: list[str], network: str) -> None:
    (event,) = events_of(*(leak(n, network, text or "-") for n, text in enumerate(texts)))
    assert len(event["message"].encode()) <= 1024
    assert event["message"].isprintable()


@given(nodes())
def test_every_event_is_about_one_kind_and_one_object(snapshot: Snapshot) -> None:
    report = scanned(snapshot)
    with stored() as agent:
        events = agent.events_of(report)
    assert len({event["metadata"]["name"] for event in events}) == len(events)
    findings = [tracked.finding for tracked in report.findings]
    names = {finding.detector.title().replace("_", "") for finding in findings}
    assert {event["reason"] for event in events} == names
    subjects = {(finding.detector, finding.network or finding.resource) for finding in findings}
    assert kinds(events).count("Node") == len(subjects)


def numbered(number: int, severity: Severity = WARNING) -> Finding:
    """A finding that has an Event of its own."""
    return leak(2, f"n{number}", f"finding {number}", severity)


def messages(events: list[dict[str, Any]]) -> list[str]:
    return [event["message"] for event in events]


def test_a_lasting_event_is_sent_again_after_five_minutes_or_when_it_is_more_severe() -> None:
    with stored() as agent:
        sent = [
            number for number in range(41) if agent.deliver(numbered(1), later=INTERVAL * number)
        ]
        assert agent.dropped == {}
    assert sent == [0, 20, 40]
    # One that has become more severe does not wait.
    for before, worse in ((INFO, WARNING), (WARNING, CRITICAL), (INFO, CRITICAL)):
        with stored() as agent:
            sent = [
                len(agent.deliver(numbered(1, severity), later=INTERVAL * n))
                for n, severity in enumerate((before, worse, worse, before))
            ]
        assert sent == [1, 1, 0, 0]
    # A less severe one does not replace one that is critical again.
    with stored() as agent:
        times = (*(INTERVAL * n for n in range(4)), EVERY, EVERY + INTERVAL)
        severities = (CRITICAL, WARNING, CRITICAL, WARNING, WARNING, CRITICAL)
        sent = [
            len(agent.deliver(numbered(1, severity), later=later))
            for severity, later in zip(severities, times, strict=True)
        ]
    assert sent == [1, 0, 0, 0, 1, 1]


def test_what_is_critical_is_sent_first() -> None:
    warnings = [numbered(n) for n in range(25)]
    with stored() as agent:
        agent.deliver(*warnings[1:])
        agent.deliver(warnings[0], later=INTERVAL)
        events = agent.deliver(*warnings[1:], numbered(0, CRITICAL), later=EVERY)
        assert messages(events)[0] == "finding 0", "before those that were sent longer ago"
    with stored() as agent:
        agent.deliver(*warnings)
        both, token = (numbered(25), numbered(26, CRITICAL)), timedelta(seconds=12)
        assert messages(agent.deliver(*both, later=token)) == ["finding 26"], (
            "before those that were never sent"
        )
        assert messages(agent.deliver(*both, later=token * 2)) == ["finding 25"]


def test_many_events_are_sent_over_time_each_once_before_any_is_repeated() -> None:
    findings = [numbered(n) for n in range(60)]
    with stored() as agent:
        sent = messages(agent.deliver(*findings))
        assert len(sent) == 25
        for number in range(1, 60):
            sent += messages(agent.deliver(*findings, later=INTERVAL * number))
            if number == 4:
                assert len(sent) == 30, "five in the first minute"
                assert agent.dropped == {"rate_limited": 35}, "they are counted once"
    assert len(set(sent[:60])) == 60


def test_the_releases_of_every_sync_are_sent_and_come_first() -> None:
    gone = cleaning(released())
    with stored() as agent:
        for number in range(3):
            (event,) = agent.events_of(replace(confirmed(later=INTERVAL * number), cleaning=gone))
            assert event["reason"] == "ReleasedReservation"
        report = replace(
            confirmed(*(numbered(n) for n in range(29)), later=INTERVAL * 20), cleaning=gone
        )
        assert agent.events_of(report)[0]["reason"] == "ReleasedReservation"
        assert agent.dropped == {"rate_limited": 5}
    # One over the limit is counted each time.
    several = [released(reservation("10.244.1.9", network=f"n{number}")) for number in range(26)]
    with stored() as agent:
        for dropped in (1, 27):
            agent.events_of(replace(confirmed(), cleaning=cleaning(*several)))
            assert agent.dropped == {"rate_limited": dropped}


@given(
    st.lists(
        st.tuples(st.timedeltas(timedelta(0), timedelta(minutes=20)), st.sets(st.integers(0, 60))),
        max_size=30,
    )
)
def test_the_limits_hold_for_any_events(syncs: list[tuple[timedelta, set[int]]]) -> None:
    now, sent = timedelta(0), list[tuple[timedelta, str]]()
    with stored() as agent:
        for after, present in syncs:
            now += after
            events = messages(agent.deliver(*map(numbered, present), later=now))
            assert set(events) <= {f"finding {number}" for number in present}
            sent += [(now, message) for message in events]
    for index, (at, message) in enumerate(sent):
        later = sent[index:]
        for end, _ in later:
            assert (
                sum(moment <= end for moment, _ in later)
                <= 25 + (end - at) / timedelta(seconds=12) + 1
            )
        assert not [
            moment for moment, other in later[1:] if other == message and moment - at < EVERY
        ]
