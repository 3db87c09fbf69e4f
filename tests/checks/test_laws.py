"""Properties of every node, every detector and every text."""

import inspect
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.checks import engine, registry
from agent.checks.registry import DETECTORS, Detector
from agent.exporters.json.scan import scan_document
from agent.exporters.text.scan import scan_table
from agent.model.anonymize import anonymous
from agent.model.assessment import KUBENET, State
from agent.model.documents import Recording, dumps, loads
from agent.model.report import Report
from agent.model.snapshot import SOURCES, Address, Checkpoint, InsufficientData, Known, Reservation, Snapshot, known_or
from tests.builders import GRACE, assessment, dark_node, node, pod, reservation, sandbox, without
from tests.strategies import nodes, read_nodes, recordings

each = pytest.mark.parametrize("detector", DETECTORS, ids=lambda detector: detector.NAME)


def finding_keys(snapshot: Snapshot, grace: timedelta = GRACE) -> tuple[set[tuple[str | int, ...]], set[str]]:
    """Return the keys of the findings, and the detectors with gaps."""
    findings, gaps = engine.detect(assessment(snapshot, grace), DETECTORS)
    assert not [gap for gap in gaps if gap.broken]
    return {finding.key for finding in findings}, {gap.detector for gap in gaps}


def leaked(snapshot: Snapshot, grace: timedelta = GRACE) -> set[tuple[str, str]]:
    return {
        (entry.network, entry.name)
        for entry in assessment(snapshot, grace).reservations
        if entry.state is State.LEAKED
    }  # fmt: skip


# Every detector


@each
def test_a_node_without_data_has_no_finding(detector: Detector) -> None:
    with pytest.raises(InsufficientData):
        list(detector.find(assessment(dark_node())))


@each
def test_a_healthy_node_has_no_finding(detector: Detector) -> None:
    assert list(detector.find(assessment(node()))) == []


@each
def test_a_detector_has_a_meaning_and_advice(detector: Detector) -> None:
    page = (inspect.getdoc(detector) or "").splitlines()
    assert page[0].endswith((".", ":"))
    assert [sum(line.startswith(word) for line in page) for word in ("Means: ", "Do: ")] == [1, 1]


@given(read_nodes())
def test_a_finding_has_a_severity_that_its_detector_declares(snapshot: Snapshot) -> None:
    known = {detector.NAME: detector.SEVERITIES for detector in DETECTORS}
    findings, _ = engine.detect(assessment(snapshot), DETECTORS)
    assert all(finding.severity in known[finding.detector] for finding in findings)


def test_every_detector_module_is_registered_by_its_name() -> None:
    checks = Path(inspect.getfile(registry)).parent
    files = {path.stem for path in checks.rglob("*.py") if "\nNAME = " in path.read_text()}
    assert files == {detector.NAME for detector in DETECTORS}


@given(read_nodes())
def test_findings_name_their_detector_and_are_unique(snapshot: Snapshot) -> None:
    for detector in DETECTORS:
        findings, _ = engine.detect(assessment(snapshot), (detector,))
        assert {finding.detector for finding in findings} <= {detector.NAME}
        assert len({finding.key for finding in findings}) == len(findings)
        assert all(finding.subject and finding.message for finding in findings)


# Owners: the laws that keep addresses in use from being called leaked. Run longest.

_LONGEST = settings(max_examples=settings.get_profile(settings.get_current_profile_name()).max_examples * 4)
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


def also(snapshot: Snapshot, field: str, thing: Any, same: Callable[[Any], bool] = lambda _: False) -> Snapshot:
    """Add a thing to a source that was read, in the place of the same."""
    kept = (record for record in _known(getattr(snapshot, field)) if not same(record))
    changed: dict[str, Any] = {field: Known((*kept, thing))}
    return replace(snapshot, **changed)


files = st.builds(
    lambda age, container_id: reservation(THE_IP, container_id, age=timedelta(seconds=age)),
    st.integers(-(10**6), 10**9),
    st.just(THE_ID),
)
patiences = st.sampled_from([timedelta(0), GRACE, timedelta(days=3650)])


def the_state(snapshot: Snapshot, grace: timedelta) -> State:
    network = snapshot.reservations[0].network
    (it,) = (
        entry for entry in assessment(snapshot, grace).reservations if (entry.network, entry.name) == (network, THE_IP)
    )
    return it.state


def is_never_leaked(snapshot: Snapshot, grace: timedelta) -> None:
    assert the_state(snapshot, grace) is not State.LEAKED
    findings, _ = engine.detect(assessment(snapshot, grace), DETECTORS)
    subject = f"{snapshot.reservations[0].network}/{THE_IP}"
    assert not [
        finding for finding in findings if (finding.detector, finding.subject) == ("leaked_reservation", subject)
    ]


@_LONGEST
@given(nodes(), files, patiences, st.sampled_from(["running", "paused", "created", "exited", "dead", "?"]))
def test_a_reservation_whose_container_is_listed_is_never_leaked(
    snapshot: Snapshot, entry: Reservation, grace: timedelta, word: str
) -> None:
    listed = sandbox(THE_ID, "shop/web", word)
    snapshot = also(with_it(snapshot, entry), "containers", listed, lambda container: container.id == THE_ID)
    is_never_leaked(snapshot, grace)
    assert the_state(snapshot, grace) in {State.IN_USE, State.NOT_READY}


@_LONGEST
@given(nodes(), files, patiences)
def test_a_reservation_whose_address_is_configured_is_never_leaked(
    snapshot: Snapshot, entry: Reservation, grace: timedelta
) -> None:
    is_never_leaked(also(with_it(snapshot, entry), "addresses", Address(THE_IP, 1, "java")), grace)


@_LONGEST
@given(nodes(), files, patiences, st.sampled_from(["Running", "Pending", "Unknown", ""]), st.booleans())
def test_a_reservation_of_a_live_pod_is_never_leaked(
    snapshot: Snapshot, entry: Reservation, grace: timedelta, phase: str, deleting: bool
) -> None:
    claimant = pod("shop/claimant", "fd00::7", THE_IP, phase=phase, deleting=deleting)
    is_never_leaked(also(with_it(snapshot, entry), "pods", claimant), grace)


@_LONGEST
@given(nodes(), files, patiences)
def test_a_reservation_with_a_checkpoint_is_never_leaked(
    snapshot: Snapshot, entry: Reservation, grace: timedelta
) -> None:
    is_never_leaked(also(with_it(snapshot, entry), "checkpoints", Checkpoint(THE_ID, "")), grace)


@_LONGEST
@given(nodes(), files, patiences, st.sampled_from(["containers", "checkpoints", "addresses", "pods"]))
def test_a_reservation_whose_owners_are_unavailable_is_never_leaked(
    snapshot: Snapshot, entry: Reservation, grace: timedelta, source: str
) -> None:
    is_never_leaked(without(with_it(snapshot, entry), source), grace)


@given(nodes(), files)
def test_a_reservation_younger_than_the_grace_period_is_never_leaked(snapshot: Snapshot, entry: Reservation) -> None:
    is_never_leaked(with_it(snapshot, entry), snapshot.taken_at - entry.mtime + timedelta(seconds=1))


@given(nodes(), files, patiences, st.booleans())
def test_all_addresses_of_a_sandbox_are_leaked_or_none(
    snapshot: Snapshot, entry: Reservation, grace: timedelta, in_use: bool
) -> None:
    snapshot = with_it(with_it(snapshot, entry), reservation("fd00::5", THE_ID))
    snapshot = also(snapshot, "addresses", Address("fd00::5", 1, "java")) if in_use else snapshot
    states = {
        entry.state for entry in assessment(snapshot, grace).reservations if entry.container_id == THE_ID
    }  # fmt: skip
    assert states == {State.LEAKED} or State.LEAKED not in states


@given(nodes(), patiences)
def test_a_longer_grace_period_never_adds_a_leak(snapshot: Snapshot, grace: timedelta) -> None:
    assert leaked(snapshot, grace + timedelta(minutes=1)) <= leaked(snapshot, grace)


# Silence


@_LONGEST
@given(nodes(), st.sampled_from(SOURCES), patiences)
def test_unavailable_sources_never_add_a_finding_or_a_leak(snapshot: Snapshot, source: str, grace: timedelta) -> None:
    incomplete = without(snapshot, source)
    assert finding_keys(incomplete, grace)[0] <= finding_keys(snapshot, grace)[0]
    assert leaked(incomplete, grace) <= leaked(snapshot, grace)


@_LONGEST
@given(nodes(two_networks=True), patiences)
def test_an_unavailable_network_never_adds_a_leak(snapshot: Snapshot, grace: timedelta) -> None:
    first, second = snapshot.reservations
    for stores in (
        (first, without(snapshot, "reservations").reservations[1]),
        (without(snapshot, "reservations").reservations[0], second),
    ):
        incomplete = replace(snapshot, reservations=stores)
        assert leaked(incomplete, grace) <= leaked(snapshot, grace)
        assert finding_keys(incomplete, grace)[0] <= finding_keys(snapshot, grace)[0]


@_LONGEST
@given(read_nodes(), st.sampled_from(SOURCES), patiences)
def test_findings_hidden_by_unavailable_sources_leave_a_gap(snapshot: Snapshot, source: str, grace: timedelta) -> None:
    """A detector that finds less because a source is unavailable leaves a gap; its gauge is absent, not 0."""
    before, _ = finding_keys(snapshot, grace)
    after, gaps = finding_keys(without(snapshot, source), grace)
    assert {key[0] for key in before - after} <= gaps


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
        assert network.reserved == len(store.reading.value) + sum(entry.blocks for entry in store.unrecognized)
        assert network.free is None or network.usable is None or 0 <= network.free <= network.usable


@given(nodes(), st.randoms(use_true_random=False))
def test_the_order_of_the_records_does_not_matter(snapshot: Snapshot, random: Any) -> None:
    def shuffled(reading: Any) -> Any:
        if not isinstance(reading, Known) or not isinstance(reading.value, tuple):
            return reading
        return Known(tuple(random.sample(reading.value, len(reading.value))))

    others: dict[str, Any] = {source: shuffled(getattr(snapshot, source)) for source in SOURCES[1:]}
    stores = tuple(replace(store, reading=shuffled(store.reading)) for store in snapshot.reservations)
    mixed = replace(snapshot, reservations=tuple(random.sample(stores, len(stores))), **others)
    assert finding_keys(mixed) == finding_keys(snapshot)
    assert {(entry.entry, entry.state) for entry in assessment(mixed).reservations} == {
        (entry.entry, entry.state) for entry in assessment(snapshot).reservations
    }


@given(nodes(), nodes())
def test_any_snapshot_can_be_exported(first: Snapshot, second: Snapshot) -> None:
    report = engine.replay([first, replace(second, uptime=first.uptime)], grace=GRACE, confirm_after=timedelta(0))
    exported = json.loads(json.dumps(scan_document(report)))
    assert len(exported["reservations"]) == len(report.assessment.reservations)
    text = " ".join(scan_table(report, verbose=True).split())  # otherwise findings of one cause are one line
    assert all(" ".join(tracked.finding.message.split()) in text for tracked in report.findings)
    assert all(reading.why in text for reading in report.unavailable)


# Names of pods


@given(recordings, st.data())
def test_names_of_pods_change_names_only(recording: Recording, data: st.DataObject) -> None:
    def assessed(pods: dict[str, str] | None) -> Report:
        return engine.replay(recording.snapshots, grace=recording.grace, confirm_after=timedelta(0), pods=pods)

    plain = assessed(None)
    ids = sorted({entry.container_id for entry in plain.assessment.reservations})
    running = sorted(pod.name for snapshot in recording.snapshots for pod in known_or(snapshot.pods, ()))
    names = st.sampled_from(["shop/cart-0", *running])
    named = assessed(data.draw(st.dictionaries(st.sampled_from(ids), names)) if ids else {})
    owners = {entry.container_id: entry.pod for entry in plain.assessment.reservations}
    assert without_names(named) == without_names(plain)
    assert [entry for entry in named.assessment.reservations if owners[entry.container_id] not in {"", entry.pod}] == []


def without_names(report: Report) -> list[object]:
    return [
        [replace(entry, pod="") for entry in report.assessment.reservations],
        [replace(tracked, finding=replace(tracked.finding, pod="", message="")) for tracked in report.findings],
        report.gaps,
        report.networks,
        report.confirmed_leaks,
    ]


# Texts


@given(recordings)
def test_a_recording_read_back_equals_what_was_written(recording: Any) -> None:
    assert loads(dumps(recording)) == recording


@given(recordings)
def test_an_anonymous_recording_has_the_same_states(recording: Any) -> None:
    def states(recorded: Recording) -> list[Any]:
        report = engine.replay(recorded.snapshots, grace=recorded.grace, confirm_after=timedelta(0))
        return [
            [(entry.network == KUBENET, entry.state, entry.blocks) for entry in report.assessment.reservations],
            Counter(
                (tracked.finding.detector, tracked.finding.network == KUBENET, tracked.since)
                for tracked in report.findings
            ),
            [(network.usable, network.reserved, network.free) for network in report.networks],
            [(gap.detector, gap.broken, gap.chosen) for gap in report.gaps],
        ]

    hidden = anonymous(recording)
    assert states(hidden) == states(recording)
    assert loads(dumps(hidden)) == hidden


def test_the_sources_are_the_snapshot_fields_in_reading_order() -> None:
    assert list(dict.fromkeys(name for name, _ in node().readings())) == list(SOURCES)
    assert {reading.source for reading in dark_node().unavailable()} == set(SOURCES)
