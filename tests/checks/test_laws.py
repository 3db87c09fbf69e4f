"""Properties of every node and every detector."""

import json
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from agent.checks import engine
from agent.checks.registry import DETECTORS
from agent.cli.anonymize import anonymous
from agent.exporters.json.scan import scan_document
from agent.exporters.text.scan import scan_table
from agent.model.assessment import State
from agent.model.devices import TransitionKind
from agent.model.documents import Recording, dump_history, dumps, load_history, loads
from agent.model.finding import Severity
from agent.model.rejections import PodOutcome, RejectionCause
from agent.model.report import Report
from agent.model.snapshot import SOURCES, Address, Checkpoint, Known, Reservation, Snapshot
from agent.model.volumes import Confidence
from tests import builders as b
from tests.builders import (
    GRACE,
    NOW,
    dark_node,
    node,
    pod,
    recorded,
    reservation,
    sandbox,
    scanned,
    without,
)
from tests.checks.reported import history_of, rejected_pods
from tests.checks.strategies import device_nodes, volume_nodes
from tests.strategies import moments, nodes, read_nodes, recordings

pytestmark = pytest.mark.proof
EXAMPLES = settings.get_profile(settings.get_current_profile_name()).max_examples
_LONGER, _LONGEST = (settings(max_examples=EXAMPLES * times) for times in (2, 4))
any_nodes = st.one_of(nodes(), device_nodes(), volume_nodes())
any_read_nodes = st.one_of(read_nodes(), device_nodes(), volume_nodes())


def finding_keys(report: Report) -> set[tuple[str | int, ...]]:
    assert not [gap for gap in report.gaps if gap.broken]
    return {tracked.finding.key for tracked in report.findings}


def without_severity(keys: set[tuple[str | int, ...]]) -> set[tuple[str | int, ...]]:
    """Return the keys without severities, which some have: one that is lower adds no finding."""
    return {tuple(part for part in key if part not in {*Severity}) for key in keys}


def leaked(report: Report) -> set[tuple[str, str]]:
    return {(entry.network, entry.ip) for entry in report.assessment.leaked}


def test_a_node_without_data_has_no_finding_but_a_gap_of_each_detector() -> None:
    report = scanned(dark_node())
    assert (report.findings, [gap.broken for gap in report.gaps]) == ((), [False] * len(DETECTORS))
    assert {gap.detector for gap in report.gaps} == {detector.NAME for detector in DETECTORS}
    # The sources are the fields of a snapshot in the order in which they are read.
    assert list(dict.fromkeys(name for name, _ in node().readings())) == list(SOURCES)
    assert {reading.source for reading in dark_node().unavailable()} == set(SOURCES)


@_LONGEST
@given(any_read_nodes)
def test_findings_are_unique_and_have_a_severity_that_their_detector_declares(
    snapshot: Snapshot,
) -> None:
    known = {detector.NAME: detector.SEVERITIES for detector in DETECTORS}
    findings = [tracked.finding for tracked in scanned(snapshot).findings]
    assert all(finding.severity in known[finding.detector] for finding in findings)
    assert all(finding.subject and finding.message for finding in findings)
    assert len({finding.key for finding in findings}) == len(findings)


# Owners: the laws that keep addresses in use from being called leaked. Run longest.

THE_IP, THE_ID = "10.0.0.77", "f" * 64
"""Of no other record: without the one that a law names, it would have no owner, and with age be leaked."""


def with_it(snapshot: Snapshot, entry: Reservation) -> Snapshot:
    """Put a file into the first network, whatever else is true of the node; its directory was read."""
    store = snapshot.reservations[0]
    others = tuple(reserved for reserved in _known(store.reading) if reserved.ip != entry.ip)
    invalid = tuple(reserved for reserved in store.unrecognized if reserved.name != entry.ip)
    return replace(
        snapshot,
        reservations=(
            replace(store, reading=Known((*others, entry)), unrecognized=invalid),
            *snapshot.reservations[1:],
        ),
    )


def _known(reading: Any) -> tuple[Any, ...]:
    return reading.value if isinstance(reading, Known) else ()


def also(snapshot: Snapshot, source: str, record: Any) -> Snapshot:
    """Add a record to a source, which then was read."""
    changed: dict[str, Any] = {source: Known((*_known(getattr(snapshot, source)), record))}
    return replace(snapshot, **changed)


files = st.builds(
    lambda age, container_id: reservation(THE_IP, container_id, age=timedelta(seconds=age)),
    st.integers(-(10**6), 10**9),
    st.just(THE_ID),
)
patiences = st.sampled_from([timedelta(0), GRACE, timedelta(days=3650)])


def the_state(snapshot: Snapshot, grace: timedelta) -> State:
    """Return its state, which is never that of a leak."""
    report, network = scanned(snapshot, grace=grace), snapshot.reservations[0].network
    assert ("leaked_reservation", f"{network}/{THE_IP}") not in {
        key[:2] for key in finding_keys(report)
    }
    (it,) = (entry for entry in report.assessment.entries(network) if entry.name == THE_IP)
    assert it.state is not State.LEAKED
    return it.state


words = st.sampled_from(["running", "paused", "created", "exited", "dead", "?"])
phases = st.sampled_from(["Running", "Pending", "Unknown", ""])
owners = st.one_of(
    words.map(lambda word: ("containers", sandbox(THE_ID, "shop/web", word))),
    st.just(("checkpoints", Checkpoint(THE_ID, ""))),
    st.just(("addresses", Address(THE_IP, 1, "java"))),
    st.builds(
        lambda phase, deleting: (
            "pods",
            pod("shop/claimant", "fd00::7", THE_IP, phase=phase, deleting=deleting),
        ),
        phases,
        st.booleans(),
    ),
)


@settings(max_examples=EXAMPLES * 16)
@given(nodes(), files, patiences, owners)
def test_a_reservation_with_an_owner_is_never_leaked(
    snapshot: Snapshot, entry: Reservation, grace: timedelta, owner: tuple[str, Any]
) -> None:
    state = the_state(also(with_it(snapshot, entry), *owner), grace)
    assert owner[0] != "containers" or state in {State.IN_USE, State.NOT_READY}


@_LONGEST
@given(
    nodes(), files, patiences, st.sampled_from(["containers", "checkpoints", "addresses", "pods"])
)
def test_a_reservation_whose_owners_are_unavailable_is_never_leaked(
    snapshot: Snapshot, entry: Reservation, grace: timedelta, source: str
) -> None:
    the_state(without(with_it(snapshot, entry), source), grace)


@given(nodes(), files)
def test_a_reservation_younger_than_the_grace_period_is_never_leaked(
    snapshot: Snapshot, entry: Reservation
) -> None:
    the_state(with_it(snapshot, entry), snapshot.taken_at - entry.mtime + timedelta(seconds=1))


@given(nodes(), files, patiences, st.booleans())
def test_all_addresses_of_a_sandbox_are_leaked_or_none(
    snapshot: Snapshot, entry: Reservation, grace: timedelta, in_use: bool
) -> None:
    snapshot = with_it(with_it(snapshot, entry), reservation("fd00::5", THE_ID))
    snapshot = also(snapshot, "addresses", Address("fd00::5", 1, "java")) if in_use else snapshot
    reservations = scanned(snapshot, grace=grace).assessment.reservations
    states = {entry.state for entry in reservations if entry.container_id == THE_ID}
    assert states == {State.LEAKED} or State.LEAKED not in states


@given(nodes(), patiences)
def test_a_longer_grace_period_never_adds_a_leak(snapshot: Snapshot, grace: timedelta) -> None:
    longer = scanned(snapshot, grace=grace + timedelta(minutes=1))
    assert leaked(longer) <= leaked(scanned(snapshot, grace=grace))


OTHER_WITNESSES = {("pods", "unreserved_pod_ip")}
"""Where a detector asks another witness while a source is unavailable, and names its finding so.

Without the pods, libcni's cache says which sandbox has an address. With them the API server says
it, which knows too that a pod is being deleted.
"""


@settings(max_examples=EXAMPLES * 12)
@given(st.one_of(any_nodes, any_read_nodes), st.sampled_from(SOURCES), patiences)
def test_unavailable_sources_never_add_a_finding_or_a_leak_and_leave_a_gap_where_one_is_hidden(
    snapshot: Snapshot, source: str, grace: timedelta
) -> None:
    """A detector that finds less because a source is unavailable leaves a gap; its gauge is absent, not 0."""
    complete, incomplete = (
        scanned(snapshot, grace=grace),
        scanned(without(snapshot, source), grace=grace),
    )
    added = without_severity(finding_keys(incomplete)) - without_severity(finding_keys(complete))
    assert {(source, str(detector)) for detector, *_ in added} <= OTHER_WITNESSES
    assert leaked(incomplete) <= leaked(complete)
    hidden = finding_keys(complete) - finding_keys(incomplete)
    assert {detector for detector, *_ in hidden} <= {gap.detector for gap in incomplete.gaps}


@_LONGEST
@given(nodes(two_networks=True), patiences)
def test_an_unavailable_network_never_adds_a_leak(snapshot: Snapshot, grace: timedelta) -> None:
    (first, second), complete = snapshot.reservations, scanned(snapshot, grace=grace)
    unread_first, unread_second = without(snapshot, "reservations").reservations
    for stores in ((first, unread_second), (unread_first, second)):
        incomplete = scanned(replace(snapshot, reservations=stores), grace=grace)
        assert leaked(incomplete) <= leaked(complete)
        assert finding_keys(incomplete) <= finding_keys(complete)


@given(nodes())
def test_every_entry_has_one_state_and_the_counts_sum_to_the_entries(snapshot: Snapshot) -> None:
    report, _ = engine.run(snapshot, None, grace=GRACE, confirm_after=timedelta(0))
    for store, network in zip(snapshot.reservations, report.networks, strict=True):
        if not isinstance(store.reading, Known):
            assert (network.states, network.reserved, network.free) == (None, None, None)
            continue
        assert network.states is not None
        assert sum(network.states.values()) == len(store.reading.value) + len(store.unrecognized)
        assert network.states[State.UNRECOGNIZED] == len(store.unrecognized)
        assert network.reserved == len(store.reading.value) + sum(
            entry.blocks for entry in store.unrecognized
        )
        assert network.free is None or network.usable is None or 0 <= network.free <= network.usable


@_LONGEST
@given(any_nodes, st.randoms(use_true_random=False))
def test_the_order_of_the_records_does_not_matter(snapshot: Snapshot, random: Any) -> None:
    def shuffled(values: Any) -> Any:
        return tuple(random.sample(values, len(values))) if isinstance(values, tuple) else values

    def mixed(reading: Any, *fields: str) -> Any:
        if not isinstance(reading, Known) or reading.value is None:
            return reading
        changes = {field: shuffled(getattr(reading.value, field)) for field in fields}
        return Known(replace(reading.value, **changes) if fields else shuffled(reading.value))

    others: dict[str, Any] = {source: mixed(getattr(snapshot, source)) for source in SOURCES[1:]}
    others["device_plugins"] = mixed(snapshot.device_plugins, "sockets", "registered")
    others["node"] = mixed(snapshot.node, "volumes_in_use")
    stores = tuple(replace(store, reading=mixed(store.reading)) for store in snapshot.reservations)
    before, after = (
        scanned(snapshot),
        scanned(replace(snapshot, reservations=shuffled(stores), **others)),
    )
    assert finding_keys(after) == finding_keys(before)
    assert {(entry.entry, entry.state) for entry in after.assessment.reservations} == {
        (entry.entry, entry.state) for entry in before.assessment.reservations
    }
    plugins = (report.assessment.snapshot.device_plugins for report in (before, after))
    assert len({reading.value.history for reading in plugins if isinstance(reading, Known)}) <= 1


@given(nodes(), nodes())
def test_any_snapshot_can_be_exported(first: Snapshot, second: Snapshot) -> None:
    report = engine.replay(
        [first, replace(second, uptime=first.uptime)], grace=GRACE, confirm_after=timedelta(0)
    )
    exported = json.loads(json.dumps(scan_document(report)))
    assert len(exported["reservations"]) == len(report.assessment.reservations)
    text = " ".join(
        scan_table(report, verbose=True).split()
    )  # otherwise findings of one cause are one line
    findings = [tracked.finding for tracked in report.findings]
    for finding in findings:
        parts = [finding.headline, *finding.details] if finding.details else [finding.message]
        assert all(" ".join(part.split()) in text for part in parts)
    assert all(reading.why in text for reading in report.unavailable)


@_LONGEST
@given(volume_nodes())
def test_each_finding_is_a_volume_in_use_and_not_attached_and_as_certain_as_it_says(
    snapshot: Snapshot,
) -> None:
    worker = b.the_node(snapshot)
    lost = {
        f"volume {volume}"
        for volume in worker.volumes_in_use
        if volume not in worker.volumes_attached
    }
    mounted = {f"volume {mount.volume}" for mount in snapshot.mounts.known()}
    findings = b.findings_of("detached_volume", snapshot)
    assert not findings or (worker.ready and worker.controller_attach)
    for finding in findings:
        assert finding.subject in lost
        explained = {Confidence.ELSEWHERE, Confidence.FAILING, Confidence.NO_DRIVER}
        assert (finding.severity is Severity.INFO) is (finding.confidence in explained)
        assert finding.severity is not Severity.WARNING or finding.confidence is Confidence.PROBABLE
        assert (finding.confidence is Confidence.MOUNTED) is (finding.subject in mounted)
        if finding.confidence is not Confidence.MOUNTED:
            assert finding.since is not None
            assert NOW - finding.since >= timedelta(
                minutes=2 if finding.confidence is Confidence.CONFIRMED else 10
            )


def kept(snapshot: Snapshot, later: Snapshot | None = None) -> Snapshot:
    """Return the next snapshot (by default the same) with the stored history of the first."""
    later = later or snapshot
    devices = later.device_plugins.known()
    text = dump_history(history_of(snapshot))
    stored = load_history(text)
    assert stored.trouble is None
    return replace(later, device_plugins=Known(replace(devices, history=stored.transitions)))


@_LONGER
@given(device_nodes(), st.sampled_from([0, 0, 0, 0.5, 3, 60, 3600, 10**6]), st.floats(-2, 2))
def test_a_cause_stays_while_nothing_changes(
    snapshot: Snapshot, later: float, noise: float
) -> None:
    """Even if the clocks are compared again, with a slightly different result."""
    passed = timedelta(seconds=later)
    again = replace(
        kept(snapshot), taken_at=snapshot.taken_at + passed, uptime=snapshot.uptime + passed
    )
    if not later:
        assert scanned(again).findings == scanned(snapshot).findings
        assert scan_document(scanned(again)) == scan_document(scanned(snapshot))
    if snapshot.api_skew == timedelta(0):
        again = replace(again, api_skew=timedelta(seconds=noise))
    assume(history_of(again) == history_of(snapshot))
    causes = {pod.uid: pod.cause for pod in rejected_pods(again)}
    assert all(pod.cause is causes[pod.uid] for pod in rejected_pods(snapshot))


@_LONGER
@given(device_nodes(), device_nodes())
def test_known_transitions_stay_and_new_ones_are_appended(
    first: Snapshot, second: Snapshot
) -> None:
    before, after = history_of(first), history_of(kept(first, second))
    assert after[: len(before)] == before
    assert history_of(kept(first)) == before, "a recording can have them already"


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
        assert [
            transition
            for transition in history
            if transition.what is TransitionKind.KUBELET_STARTED
        ]
    assert history_of(kept(full)) == history


BY_WORDS = {
    RejectionCause.UNVERIFIED,
    RejectionCause.PLUGIN_RESTART,
    RejectionCause.PLUGIN_ERROR,
    RejectionCause.REQUEST_CHANGED,
    RejectionCause.CHECKPOINT_FAILED,
    RejectionCause.NOT_FOR_A_DEVICE,
}
"""The causes that need no resource: the kubelet's message alone can prove them."""


@_LONGER
@given(device_nodes())
def test_every_rejected_pod_that_stays_is_reported_once(snapshot: Snapshot) -> None:
    rejected = rejected_pods(snapshot)
    uids = [pod.uid for pod in rejected]
    assert len(uids) == len(set(uids))
    assert {
        pod.uid for pod in snapshot.pods.known() if pod.rejection and pod.deletion is None
    } <= set(uids)
    for refused in rejected:
        assert refused.controller or refused.pod_outcome not in {
            PodOutcome.REPLACED_BY_CONTROLLER,
            PodOutcome.REJECTED_AGAIN,
        }
        assert refused.resource or refused.cause in BY_WORDS


@given(recordings, st.data())
def test_names_of_pods_change_names_only(recording: Recording, data: st.DataObject) -> None:
    def assessed(pods: dict[str, str] | None) -> Report:
        return engine.replay(
            recording.snapshots, grace=recording.grace, confirm_after=timedelta(0), pods=pods
        )

    plain = assessed(None)
    ids = sorted({entry.container_id for entry in plain.assessment.reservations})
    running = sorted(pod.name for snapshot in recording.snapshots for pod in _known(snapshot.pods))
    names = st.sampled_from(["shop/cart-0", *running])
    named = assessed(data.draw(st.dictionaries(st.sampled_from(ids), names)) if ids else {})
    owners = {entry.container_id: entry.pod for entry in plain.assessment.reservations}
    assert without_names(named) == without_names(plain)
    assert [
        entry
        for entry in named.assessment.reservations
        if owners[entry.container_id] not in {"", entry.pod}
    ] == []


def without_names(report: Report) -> list[object]:
    return [
        [replace(entry, pod="") for entry in report.assessment.reservations],
        [
            replace(tracked, finding=replace(tracked.finding, pod="", message=""))
            for tracked in report.findings
        ],
        report.gaps,
        report.networks,
        report.confirmed_leaks,
    ]


@_LONGER
@given(st.one_of(recordings, st.one_of(device_nodes(), volume_nodes()).map(recorded)))
def test_an_anonymous_recording_has_the_same_states_and_findings(recording: Recording) -> None:
    def verdicts(recorded: Recording) -> list[Any]:
        report = engine.replay(
            recorded.snapshots * 2, grace=recorded.grace, confirm_after=timedelta(0)
        )
        findings = [tracked.finding for tracked in report.findings]
        pods = [pod for finding in findings for pod in finding.rejected_pods]
        return [
            [
                (entry.network == "kubenet", entry.state, entry.blocks)
                for entry in report.assessment.reservations
            ],
            Counter(
                (
                    found.detector,
                    found.network == "kubenet",
                    found.confidence,
                    bool(found.pod),
                    found.since,
                )
                for found in findings
            ),
            [(network.usable, network.reserved, network.free) for network in report.networks],
            [(gap.detector, gap.broken, gap.chosen) for gap in report.gaps],
            [(pod.cause, pod.pod_outcome) for pod in pods],
            [
                (state["registered"], state["registration_delay_seconds"])
                for state in scan_document(report)["device_plugins"] or ()
            ],
        ]

    hidden = anonymous(recording)
    assert verdicts(hidden) == verdicts(recording)
    assert (loads(dumps(recording)), loads(dumps(hidden))) == (recording, hidden)
