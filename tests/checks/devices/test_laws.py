"""Properties of every history and every rejected pod."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.exporters.json.scan import scan_document
from agent.model.devices import TransitionKind
from agent.model.documents import dump_history, load_history
from agent.model.rejections import PodOutcome, RejectionCause
from agent.model.snapshot import Known, NotRequested, Snapshot
from tests.builders import scanned
from tests.checks.reported import history_of, rejected_pods
from tests.checks.strategies import device_nodes
from tests.strategies import moments

_LONGER = settings(max_examples=settings.get_profile(settings.get_current_profile_name()).max_examples * 2)


def kept(snapshot: Snapshot, later: Snapshot | None = None) -> Snapshot:
    """Return the next snapshot (by default the same) with the stored history of the first."""
    later = later or snapshot
    devices = later.device_plugins.known()
    text = dump_history(history_of(snapshot))
    stored = load_history(text)
    assert stored.trouble == ""
    return replace(later, device_plugins=Known(replace(devices, history=stored.transitions)))


# History


@_LONGER
@given(device_nodes())
def test_the_same_snapshot_twice_has_the_same_rejections(snapshot: Snapshot) -> None:
    first, again = scanned(snapshot), scanned(kept(snapshot))
    assert again.findings == first.findings
    assert scan_document(again) == scan_document(first)


@_LONGER
@given(device_nodes(), st.sampled_from([0.5, 3, 60, 3600, 10**6]), st.floats(-2, 2))
def test_a_cause_stays_while_nothing_changes(snapshot: Snapshot, later: float, noise: float) -> None:
    """Even if the clocks are compared again, with a slightly different result."""
    passed = timedelta(seconds=later)
    again = replace(kept(snapshot), taken_at=snapshot.taken_at + passed, uptime=snapshot.uptime + passed)
    if snapshot.api_skew == timedelta(0):
        again = replace(again, api_skew=timedelta(seconds=noise))
    assume(history_of(again) == history_of(snapshot))
    causes = {pod.uid: pod.cause for pod in rejected_pods(again)}
    assert all(pod.cause is causes[pod.uid] for pod in rejected_pods(snapshot))


@_LONGER
@given(device_nodes(), device_nodes())
def test_known_transitions_stay_and_new_ones_are_appended(first: Snapshot, second: Snapshot) -> None:
    before, after = history_of(first), history_of(kept(first, second))
    assert after[: len(before)] == before


@given(device_nodes(), st.lists(moments, min_size=256, max_size=256 + 20))
def test_a_bounded_history_keeps_the_current_state(snapshot: Snapshot, past: list[Any]) -> None:
    devices = snapshot.device_plugins.known()
    full = replace(snapshot, device_plugins=Known(replace(devices, history=tuple(past))))
    history = history_of(full)
    subjects = {transition.resource or transition.socket for transition in past}
    assert 256 <= len(history) <= 256 + len(subjects)
    for resource in {transition.resource for transition in past if transition.resource}:
        assert [transition for transition in history if transition.resource == resource]
    if any(transition.what is TransitionKind.KUBELET_STARTED for transition in past):
        assert [transition for transition in history if transition.what is TransitionKind.KUBELET_STARTED]
    assert history_of(kept(full)) == history


# Verdicts


@_LONGER
@given(device_nodes())
def test_every_rejected_pod_that_stays_is_reported_once(snapshot: Snapshot) -> None:
    rejected = rejected_pods(snapshot)
    uids = [pod.uid for pod in rejected]
    assert len(uids) == len(set(uids))
    assert {pod.uid for pod in snapshot.pods.known() if pod.rejection and pod.deletion is None} <= set(uids)
    for pod in rejected:
        assert "--force" not in pod.do or "never use --force" in pod.do
        assert pod.controller or pod.pod_outcome is not PodOutcome.REPLACED_BY_CONTROLLER
        assert pod.resource or pod.cause is RejectionCause.UNVERIFIED


@given(device_nodes())
def test_disabled_device_plugins_leave_no_gap(snapshot: Snapshot) -> None:
    alone = replace(snapshot, device_plugins=NotRequested("device_plugins", "there is no such directory"))
    gaps = scanned(alone).gaps
    assert {"late_device_plugin", "rejected_pod", "started_without_device"} <= {gap.detector for gap in gaps}
    assert all(gap.chosen for gap in gaps if "device_plugins" in gap.why)
