"""The Events of a sync: confirmed findings, one for each kind and place, and releases."""

import json
import re
from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from agent.checks import engine
from agent.checks.registry import DETECTORS
from agent.kube_events.messages import LONGEST, REASONS, About, EventSpec, event_specs, reason
from agent.model.finding import Finding, Severity
from agent.model.index import SnapshotIndex
from agent.model.release import Verdict
from agent.model.snapshot import Snapshot
from tests.builders import GRACE, KVM, NOW, node, pod, refused_pod, reservation, sandbox, without
from tests.exporters.cleanings import CANDIDATE, DUAL, cleaning, many, outcome, refused, released
from tests.kube_events.syncs import Syncs, confirmed, leak
from tests.strategies import nodes

NODE = About("Node", "", "worker-1", "worker-1")


def events_of(*findings: Finding) -> list[EventSpec]:
    return list(event_specs(confirmed(*findings)))


def test_reasons_are_the_detectors_names_in_camel_case() -> None:
    assert reason("leaked_reservation") == "LeakedReservation"
    assert len(set(REASONS)) == len(DETECTORS) + 1
    assert all(re.fullmatch(r"([A-Z][a-z]+)+", name) and len(name) <= 128 for name in REASONS)


def test_only_a_confirmed_finding_has_an_event() -> None:
    syncs = Syncs()
    lost = node(reservation("10.244.1.9"))
    assert [list(event_specs(syncs.report(lost))) for _ in range(2)] == [[], []]
    (spec,) = event_specs(syncs.report(lost))
    assert (spec.about, spec.reason, spec.type, spec.subject) == (NODE, "LeakedReservation", "Warning", "kubenet")
    assert spec.message.startswith("10.244.1.9 is reserved for container 999999999999, which no longer exists")
    assert spec.path == "/api/v1/namespaces/default/events"


def test_leaks_of_a_network_are_one_event_with_their_number_and_five_of_them() -> None:
    (spec,) = events_of(*(leak(n) for n in range(2, 9)))
    listed = " | ".join(f"10.244.1.{n} leaked" for n in range(2, 7))
    assert spec.message == f"7 findings in kubenet: {listed} | and 2 more"
    (five,) = events_of(*(leak(n) for n in range(2, 7)))
    assert five.message == f"5 findings in kubenet: {listed}"


def test_networks_resources_and_detectors_have_events_of_their_own() -> None:
    late = Finding("late_device_plugin", KVM, "late", resource=KVM)
    several = events_of(leak(2), leak(3), leak(2, network="storage"), late)
    assert [(spec.reason, spec.subject) for spec in several] == [
        ("LateDevicePlugin", KVM),
        ("LeakedReservation", "kubenet"),
        ("LeakedReservation", "storage"),
    ]
    assert len({spec.name for spec in several}) == 3


def test_informational_findings_are_normal_events() -> None:
    info, warning, critical = Severity.INFO, Severity.WARNING, Severity.CRITICAL
    for severities, kind in (
        ([info], "Normal"),
        ([warning], "Warning"),
        ([critical], "Warning"),
        ([info, warning], "Warning"),
    ):
        (spec,) = events_of(*(leak(n, severity=severity) for n, severity in enumerate(severities)))
        assert (spec.type, spec.critical) == (kind, critical in severities)


def test_an_affected_pod_has_an_event_in_its_namespace() -> None:
    syncs = Syncs()
    sharing = node(sandbox("4" * 64, "shop/cart"), pod("shop/cart", "10.244.1.2"))
    (*_, report) = [syncs.report(sharing) for _ in range(3)]
    shared = [spec for spec in event_specs(report) if spec.reason == "SharedIp"]
    assert [spec.about for spec in shared] == [
        NODE,
        About("Pod", "shop", "web", "uid of shop/web"),
        About("Pod", "shop", "cart", "uid of shop/cart"),
    ]
    assert {spec.path for spec in shared[1:]} == {"/api/v1/namespaces/shop/events"}


def test_many_rejected_pods_have_an_event_each_and_the_node_has_one() -> None:
    syncs = Syncs()
    storm = node(*(refused_pod(f"shop/render-{n}", controller="ReplicaSet/render") for n in range(7)))
    (*_, report) = [syncs.report(storm) for _ in range(3)]
    rejected_pods = [spec for spec in event_specs(report) if spec.reason == "RejectedPod"]
    assert [spec.about.kind for spec in rejected_pods] == ["Node", *["Pod"] * 7]
    assert rejected_pods[0].subject == KVM


def test_a_pod_that_waits_for_a_volume_has_an_event_and_the_successor_of_a_leaked_addresss_pod_has_none() -> None:
    waits = Finding("detached_volume", "volume v", "m", affected=("uid of shop/web",))
    for finding, kinds in ((waits, ["Node", "Pod"]), (replace(leak(9), pod="shop/web"), ["Node"])):
        assert [spec.about.kind for spec in events_of(finding)] == kinds


def test_unknown_pods_have_no_event() -> None:
    refused = Finding("unreserved_pod_ip", "kubenet/10.244.1.2 of pod shop/web", "m", identity=("uid of shop/web",))
    report = confirmed(refused)
    index = SnapshotIndex(without(report.assessment.snapshot, "pods"))
    incomplete = replace(report, assessment=replace(report.assessment, index=index))
    assert [spec.about.kind for spec in event_specs(report)] == ["Node", "Pod"]
    assert [spec.about.kind for spec in event_specs(incomplete)] == ["Node"]


def test_releases_of_a_network_are_one_event_with_their_number() -> None:
    cleaned = cleaning(
        released(*DUAL), *(released(candidate) for candidate in many(5)), refused(CANDIDATE), outcome(Verdict.GONE)
    )
    (spec,) = event_specs(replace(confirmed(), cleaning=cleaned))
    assert (spec.about, spec.reason, spec.type, spec.lasting) == (NODE, "ReleasedReservation", "Normal", False)
    assert spec.message.startswith("released leaked addresses in kubenet (7): 10.244.1.9 (of pod shop/cart) | ")
    assert spec.message.endswith(" | and 2 more")
    (single,) = event_specs(replace(confirmed(), cleaning=cleaning(released())))
    assert single.message == "released leaked addresses in kubenet (1): 10.244.1.9 (of pod shop/cart)"


def test_an_event_has_the_fields_that_kubectl_looks_for() -> None:
    (spec,) = events_of(leak(9))
    event = spec.event(NOW)
    assert event["involvedObject"] == {"apiVersion": "v1", "kind": "Node", "name": "worker-1", "uid": "worker-1"}
    assert event["metadata"] == {"name": spec.name, "namespace": "default"}
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-03-26T20:00:00Z"
    assert (event["count"], event["source"]) == (1, {"component": "nodeleak", "host": "worker-1"})


def test_an_event_has_the_same_unique_name_in_every_process() -> None:
    (spec,) = events_of(leak(9))
    assert spec.name == "worker-1.nodeleak.ebfed3357c8fbfa8"
    for other in (
        replace(spec, node="worker-2"),
        replace(spec, reason="SharedIp"),
        replace(spec, subject="storage"),
        replace(spec, about=About("Pod", "shop", "worker-1", "worker-1")),
    ):
        assert other.name != spec.name
    assert replace(spec, message="more", type="Normal").name == spec.name


@given(st.text(st.sampled_from("abz09-."), min_size=1, max_size=253), st.text(max_size=5))
def test_an_events_name_is_valid(name: str, subject: str) -> None:
    named = f"a{name[:251]}z"
    spec = EventSpec("n", About("Pod", "shop", named, "u"), "Reason", "Normal", "", subject)
    assert len(spec.name) <= 253
    assert spec.name.startswith("a")
    assert "-." not in spec.name[195:]


@given(st.lists(st.text(max_size=600), min_size=1, max_size=12), st.text(max_size=300))
def test_a_message_is_one_line_that_fits(texts: list[str], network: str) -> None:
    for spec in events_of(*(leak(n, network, text or "-") for n, text in enumerate(texts))):
        assert len(spec.message.encode()) <= LONGEST
        assert spec.message.isprintable()
        json.dumps(spec.event(NOW))


@given(nodes())
def test_every_event_is_about_one_kind_and_one_object(snapshot: Snapshot) -> None:
    report = engine.replay((snapshot, snapshot), grace=GRACE, confirm_after=timedelta(0))
    all_of_them = list(event_specs(report))
    assert len({spec.name for spec in all_of_them}) == len(all_of_them)
    assert {spec.reason for spec in all_of_them} == {reason(tracked.finding.detector) for tracked in report.findings}
    findings = [tracked.finding for tracked in report.findings]
    places = {(finding.detector, finding.network or finding.resource) for finding in findings}
    assert sum(spec.about.kind == "Node" for spec in all_of_them) == len(places)
