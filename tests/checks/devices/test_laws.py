"""Properties of every history, every rejected pod and every node with device plugins."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.checks import engine
from agent.checks.devices.history import MAX_TRANSITIONS, derive, with_history
from agent.checks.devices.rejected_pod import rejected_pods
from agent.checks.devices.resource_state import resource_states
from agent.checks.registry import DETECTORS
from agent.model import documents
from agent.model.anonymize import anonymous
from agent.model.devices import TransitionKind
from agent.model.documents import Recording, dumps, loads
from agent.model.rejections import PodOutcome, RejectionCause, RejectionKind
from agent.model.snapshot import SOURCES, Known, NodeDevices, NotRequested, Pod, Snapshot
from tests.builders import GRACE, KVM, NOW, WORKER, assessment, node, refused_pod, without
from tests.strategies import RESOURCES, agos, device_managers, moments, names, seldom

_LONGEST = settings(max_examples=settings.get_profile(settings.get_current_profile_name()).max_examples * 4)


@st.composite
def pods(draw: st.DrawFn) -> list[Pod]:
    """Pods with devices, rejected or running, of few controllers."""
    several = []
    for number in range(draw(st.integers(0, 7))):
        resource, ago = draw(st.sampled_from([*RESOURCES, ""])), draw(agos)
        rejected = refused_pod(
            f"{draw(names)}-{number}", resource, ago=ago, refused=draw(st.sampled_from(RejectionKind))
        )
        pod = replace(
            rejected,
            wants=draw(st.sampled_from([(), (KVM,), RESOURCES])),
            started=draw(st.one_of(st.none(), agos.map(lambda ago: NOW - ago))),
            controller=draw(st.sampled_from(["", "ReplicaSet/web", "ReplicaSet/web", "Job/once", "StatefulSet/db"])),
        )
        if draw(seldom()):
            pod = replace(pod, deleting=True, deletion=NOW - draw(agos))
        if draw(st.booleans()):
            pod = replace(pod, phase="Running", rejection=None)
        elif pod.rejection is not None:
            pod = replace(
                pod,
                rejection=replace(
                    pod.rejection, available=draw(st.sampled_from([None, 0, 0, 1])), by_api=draw(st.booleans())
                ),
            )
        several.append(pod)
    return several


@st.composite
def device_nodes(draw: st.DrawFn) -> Snapshot:
    """A node of which everything was read, and on which everything about devices may be wrong."""
    node_devices = draw(
        st.lists(st.builds(NodeDevices, st.sampled_from(RESOURCES), st.integers(0, 1), st.just(0)), max_size=1)
    )
    snapshot = node(
        device_plugins=draw(device_managers()),
        pods=draw(pods()),
        node=[replace(WORKER, devices=tuple(node_devices))],
    )
    skew = draw(st.sampled_from([None, timedelta(0), timedelta(seconds=90), timedelta(seconds=-90)]))
    uptime = draw(st.sampled_from([snapshot.uptime, timedelta(seconds=700), timedelta(seconds=5)]))
    return replace(snapshot, api_skew=skew, uptime=uptime)


def kept(snapshot: Snapshot, later: Snapshot | None = None) -> Snapshot:
    """Return the next snapshot (by default the same) with the stored history of the first."""
    later = later or snapshot
    devices = later.device_plugins.known()
    text = documents.dump_history(derive(snapshot))
    stored = documents.load_history(text)
    assert stored.trouble == ""
    return replace(later, device_plugins=Known(replace(devices, history=stored.transitions)))


def finding_keys(snapshot: Snapshot) -> tuple[set[tuple[str | int, ...]], set[str]]:
    findings, gaps = engine.detect(assessment(snapshot), DETECTORS)
    assert not [gap for gap in gaps if gap.broken]
    return {finding.key for finding in findings}, {gap.detector for gap in gaps}


# History


@_LONGEST
@given(device_nodes())
def test_a_history_is_completed_once(snapshot: Snapshot) -> None:
    completed = with_history(snapshot)
    assert with_history(completed) == completed


@_LONGEST
@given(device_nodes())
def test_the_same_snapshot_twice_has_the_same_rejections(snapshot: Snapshot) -> None:
    assert resource_states(with_history(kept(snapshot))) == resource_states(with_history(snapshot))
    assert [*rejected_pods(with_history(kept(snapshot)))] == [*rejected_pods(with_history(snapshot))]


@_LONGEST
@given(device_nodes(), st.sampled_from([0.5, 3, 60, 3600, 10**6]), st.floats(-2, 2))
def test_a_cause_stays_while_nothing_changes(snapshot: Snapshot, later: float, noise: float) -> None:
    """Even if the clocks are compared again, with a slightly different result."""
    passed = timedelta(seconds=later)
    again = replace(kept(snapshot), taken_at=snapshot.taken_at + passed, uptime=snapshot.uptime + passed)
    if snapshot.api_skew == timedelta(0):
        again = replace(again, api_skew=timedelta(seconds=noise))
    assume(derive(again) == derive(snapshot))
    causes = {rejected.uid: rejected.cause for rejected in rejected_pods(with_history(again))}
    assert [(rejected.uid, rejected.cause) for rejected in rejected_pods(with_history(snapshot))] == [
        (rejected.uid, causes[rejected.uid]) for rejected in rejected_pods(with_history(snapshot))
    ]


@_LONGEST
@given(device_nodes(), device_nodes())
def test_known_transitions_stay_and_new_ones_are_appended(first: Snapshot, second: Snapshot) -> None:
    before, after = derive(first), derive(kept(first, second))
    assert after[: len(before)] == before


@given(device_nodes(), st.lists(moments, min_size=MAX_TRANSITIONS, max_size=MAX_TRANSITIONS + 20))
def test_a_bounded_history_keeps_the_current_state(snapshot: Snapshot, past: list[Any]) -> None:
    devices = snapshot.device_plugins.known()
    full = replace(snapshot, device_plugins=Known(replace(devices, history=tuple(past))))
    history = derive(full)
    subjects = {transition.resource or transition.socket for transition in past}
    assert MAX_TRANSITIONS <= len(history) <= MAX_TRANSITIONS + len(subjects)
    for resource in {transition.resource for transition in past if transition.resource}:
        assert [transition for transition in history if transition.resource == resource]
    if any(transition.what is TransitionKind.KUBELET_STARTED for transition in past):
        assert [transition for transition in history if transition.what is TransitionKind.KUBELET_STARTED]
    assert derive(kept(full)) == history


@given(device_nodes(), st.randoms(use_true_random=False))
def test_the_order_of_the_files_does_not_matter(snapshot: Snapshot, random: Any) -> None:
    devices = snapshot.device_plugins.known()
    mixed = replace(
        devices,
        sockets=tuple(random.sample(devices.sockets, len(devices.sockets))),
        registered=tuple(random.sample(devices.registered, len(devices.registered))),
    )
    again = replace(snapshot, device_plugins=Known(mixed))
    assert derive(again) == derive(snapshot)
    assert finding_keys(again) == finding_keys(snapshot)


# Verdicts


@_LONGEST
@given(device_nodes())
def test_every_rejected_pod_that_stays_is_reported_once(snapshot: Snapshot) -> None:
    findings, _ = engine.detect(assessment(snapshot), DETECTORS)
    node_devices = [rejected.uid for finding in findings for rejected in finding.rejected_pods]
    assert len(node_devices) == len(set(node_devices))
    refused = {pod.uid for pod in snapshot.pods.known() if pod.rejection is not None and pod.deletion is None}
    assert refused <= set(node_devices)
    rejected = [*rejected_pods(with_history(snapshot))]
    assert all("--force" not in refused.do or "never use --force" in refused.do for refused in rejected)


@_LONGEST
@given(device_nodes())
def test_an_unreplaced_pod_is_stuck_and_a_pod_without_time_is_unverified(snapshot: Snapshot) -> None:
    for rejected in rejected_pods(with_history(snapshot)):
        assert rejected.controller or rejected.pod_outcome is not PodOutcome.REPLACED_BY_CONTROLLER
        assert rejected.resource or rejected.cause is RejectionCause.UNVERIFIED


# Silence


@_LONGEST
@given(device_nodes(), st.sampled_from(SOURCES))
def test_unavailable_sources_never_add_a_finding(snapshot: Snapshot, source: str) -> None:
    assert finding_keys(without(snapshot, source))[0] <= finding_keys(snapshot)[0]


@_LONGEST
@given(device_nodes(), st.sampled_from(SOURCES))
def test_findings_hidden_by_unavailable_sources_leave_a_gap(snapshot: Snapshot, source: str) -> None:
    before, _ = finding_keys(snapshot)
    after, gaps = finding_keys(without(snapshot, source))
    assert {key[0] for key in before - after} <= gaps


@given(device_nodes())
def test_disabled_device_plugins_leave_no_gap(snapshot: Snapshot) -> None:
    alone = replace(snapshot, device_plugins=NotRequested("device_plugins", "there is no such directory"))
    _, gaps = engine.detect(assessment(alone), DETECTORS)
    assert {"late_device_plugin", "rejected_pod", "started_without_device"} <= {gap.detector for gap in gaps}
    assert all(gap.chosen for gap in gaps if "device_plugins" in gap.why)


# Recordings


@given(device_nodes())
def test_an_anonymous_recording_with_devices_has_the_same_findings(snapshot: Snapshot) -> None:
    recording = Recording(grace=GRACE, confirm_after=timedelta(0), snapshots=(snapshot,))
    assert loads(dumps(recording)) == recording
    nameless = anonymous(recording).snapshots[0]
    assert [
        (rejected.cause, rejected.pod_outcome, rejected.resource) for rejected in rejected_pods(with_history(nameless))
    ] == [
        (rejected.cause, rejected.pod_outcome, rejected.resource) for rejected in rejected_pods(with_history(snapshot))
    ]
    assert [
        (current.resource, current.registered, current.delay) for current in resource_states(with_history(nameless))
    ] == [(current.resource, current.registered, current.delay) for current in resource_states(with_history(snapshot))]
