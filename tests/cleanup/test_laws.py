"""What holds for every cleanup on any node. The recheck finds no owner, if not said otherwise: the guards protect."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from agent.checks import engine
from agent.cleanup import guards
from agent.model.assessment import State
from agent.model.release import Cleaning, Reason, Verdict
from agent.model.report import Report
from agent.model.snapshot import (
    SOURCES,
    Address,
    Checkpoint,
    Container,
    Known,
    NotRequested,
    Reservation,
    Snapshot,
)
from tests.builders import NON_ADDRESS_SOURCES, NOW, guard_context, pod, reservation, without
from tests.cleanup.recheck import Owners
from tests.cleanup.syncs import Daemon, Name, entry, reserved
from tests.strategies import (
    IDS,
    IPS,
    CleanupInput,
    cleanup_inputs,
    ids,
    ips,
    leaky_nodes,
    nodes,
    odd_nodes,
)

pytestmark = pytest.mark.proof
_PROFILE = settings.get_profile(settings.get_current_profile_name())
_LONGER = settings(max_examples=_PROFILE.max_examples * 3)
_LONGEST = settings(max_examples=_PROFILE.max_examples * 8)


def owned(snapshot: Snapshot) -> set[Name]:
    """Return the owned addresses, computed without any code of the agent."""
    containers = {container.id for container in _items(snapshot.containers)} | {
        checkpoint.container_id for checkpoint in _items(snapshot.checkpoints)
    }
    live = [
        pod
        for pod in _items(snapshot.pods)
        if pod.phase not in {"Succeeded", "Failed"} and not pod.host_network
    ]
    addresses = {address.ip for address in _items(snapshot.addresses)} | {
        ip for pod in live for ip in pod.ips
    }
    return {
        name
        for name, reservation in reserved(snapshot).items()
        if reservation.ip in addresses
        or (reservation.container_id and reservation.container_id in containers)
    }


def _items(reading: Any) -> tuple[Any, ...]:
    return reading.value if isinstance(reading, Known) else ()


def daemon_for(case: CleanupInput, broken: Iterable[str] = (), **parts: Any) -> Daemon:
    """`broken`: addresses whose file cannot be removed."""
    daemon = Daemon(limits=case.limits, **parts)
    daemon.files.broken = set(broken)
    return daemon


def clean(
    daemon: Daemon,
    case: CleanupInput,
    report: Report | None = None,
    snapshots: Sequence[Snapshot] = (),
) -> tuple[set[Name], Cleaning]:
    """Return what the daemon really removed after these snapshots, and what it reports."""
    snapshots = snapshots or case.snapshots
    replayed = report or engine.replay(
        snapshots, grace=case.limits.grace, confirm_after=timedelta(0)
    )
    cleaning = daemon.clean(snapshots, replayed)
    return set(reserved(snapshots[-1])) - set(daemon.files.files), cleaning


def removed(case: CleanupInput, report: Report | None = None, **parts: Any) -> set[Name]:
    return clean(daemon_for(case, **parts), case, report)[0]


def mistaken(case: CleanupInput) -> Report:
    """Return the worst report: every reservation is a confirmed leak."""
    report = engine.replay(case.snapshots, grace=timedelta(0), confirm_after=timedelta(0))
    assessment = replace(
        report.assessment,
        reservations=tuple(
            replace(entry, state=State.LEAKED) if isinstance(entry.entry, Reservation) else entry
            for entry in report.assessment.reservations
        ),
    )
    return replace(report, assessment=assessment)


def truthful(snapshot: Snapshot) -> Owners:
    """Return the recheck of a node that is still as in the snapshot."""
    return Owners(
        {container.id for container in _items(snapshot.containers)},
        {checkpoint.container_id for checkpoint in _items(snapshot.checkpoints)},
        {address.ip: "a process" for address in _items(snapshot.addresses)},
    )


def test_the_generated_nodes_have_releases() -> None:
    """The strategies produce a sync that releases a lot, and one that releases half of it."""
    looking = settings(max_examples=5000, phases=[Phase.generate])
    find(cleanup_inputs(), lambda case: len(removed(case)) >= 3, settings=looking)
    find(
        cleanup_inputs(),
        lambda case: 0 < len(removed(case)) < len(reserved(case.last)) - 2,
        settings=looking,
    )
    changed = cleanup_inputs(leaky_nodes())
    find(
        changed,
        lambda case: bool(removed(case)) and case.first.containers != case.last.containers,
        settings=looking,
    )


@_LONGEST
@given(cleanup_inputs())
def test_only_old_leaks_of_both_snapshots_without_an_owner_are_released(case: CleanupInput) -> None:
    """Even if everything is classified as leaked: then the recheck finds the owners."""
    before, last, gone = reserved(case.first), reserved(case.last), removed(case)
    assert not gone & owned(case.last)
    for name in gone:
        assert before[name] == last[name]
        assert case.last.taken_at - last[name].mtime >= case.limits.grace
    assert not removed(case, mistaken(case), owners=truthful(case.last)) & owned(case.last)


@_LONGER
@given(cleanup_inputs(), ips, ids, st.sampled_from(["running", "created", "exited", "dead", "?"]))
def test_an_owner_of_any_kind_protects_an_address_of_any_node(
    case: CleanupInput, ip: str, container_id: str, word: str
) -> None:
    """An owner that is in the last snapshot only."""
    leak = reservation(ip, container_id)
    first, last = (with_it(snapshot, leak) for snapshot in case.snapshots)
    for owner in (
        {"containers": Container(container_id, word, 0, "", "", sandbox=False)},
        {"checkpoints": Checkpoint(container_id, "")},
        {"addresses": Address(ip, 1, "")},
        {"pods": pod("shop/late", "192.0.2.1", ip, phase="Pending")},
    ):
        assert (leak.network, ip) not in removed(
            CleanupInput(first, also(last, owner), case.limits)
        )


def with_it(snapshot: Snapshot, entry: Reservation) -> Snapshot:
    """Put a file into the first network, in the place of what has its name."""
    store = snapshot.reservations[0]
    others = tuple(
        reservation for reservation in _items(store.reading) if reservation.ip != entry.ip
    )
    strange = tuple(
        unrecognized for unrecognized in store.unrecognized if unrecognized.name != entry.ip
    )
    changed = replace(store, reading=Known((*others, entry)), unrecognized=strange)
    return replace(snapshot, reservations=(changed, *snapshot.reservations[1:]))


def also(snapshot: Snapshot, records: Mapping[str, Any]) -> Snapshot:
    """Add a thing to each of some sources, which were read then."""
    changed: dict[str, Any] = {
        source: Known((*_items(getattr(snapshot, source)), thing))
        for source, thing in records.items()
    }
    return replace(snapshot, **changed)


@_LONGER
@given(cleanup_inputs(), st.sampled_from(sorted({*SOURCES} - {*NON_ADDRESS_SOURCES})))
def test_with_any_source_unavailable_nothing_is_released(case: CleanupInput, source: str) -> None:
    case = replace(case, last=without(case.last, source))
    gone, cleaning = clean(daemon_for(case), case)
    assert gone == set()
    assert {outcome.verdict for outcome in cleaning.outcomes} <= {Verdict.REFUSED}


@_LONGER
@given(
    cleanup_inputs(leaky_nodes()),
    st.sampled_from(["checkpoints", "containers", "addresses", "processes"]),
)
def test_a_source_not_requested_is_not_treated_as_empty(case: CleanupInput, source: str) -> None:
    changed: dict[str, Any] = {source: NotRequested(source, "it was left alone")}
    incomplete = replace(case, last=replace(case.last, **changed))
    if source != "processes" or case.limits.settle:
        # An empty file names no sandbox that could have a checkpoint.
        gone = {
            name
            for name in removed(incomplete)
            if source != "checkpoints" or reserved(case.last)[name].container_id
        }
        assert gone == set()


@_LONGER
@given(cleanup_inputs(leaky_nodes()), st.integers(0, 4), st.integers(0, 4), st.data())
def test_no_sync_exceeds_a_release_limit(
    case: CleanupInput, a_round: int, an_hour: int, data: st.DataObject
) -> None:
    """An hour's: with what is in the journal, whoever wrote it and whenever."""
    ago = data.draw(
        st.lists(st.tuples(st.integers(-5, 90), st.sampled_from(["run", "clean"])), max_size=4)
    )
    budget = {"per_sync": ("--max-per-sync", a_round), "per_hour": ("--max-per-hour", an_hour)}
    daemon = daemon_for(case, budget=budget)
    for number, (minutes, actor) in enumerate(ago):
        lost = reservation("10.0.0.99", f"{number:x}f" * 32)
        daemon.journal.entries[str(number)] = entry(
            lost, at=NOW - timedelta(minutes=minutes), actor=actor
        )
    spent = sum(actor == "run" and minutes < 60 for minutes, actor in ago)
    assert len(clean(daemon, case)[0]) <= min(a_round, max(0, an_hour - spent))


@_LONGER
@given(cleanup_inputs(), cleanup_inputs())
def test_a_halted_cleaner_never_releases_again(stops: CleanupInput, case: CleanupInput) -> None:
    lost = reservation(IPS[0], IDS[0])
    daemon = daemon_for(case)
    daemon.journal.entries["1"] = entry(lost)
    again = Container(lost.container_id, "exited", 0, "", "", sandbox=True)
    first = clean(daemon, case, snapshots=(also(stops.first, {"containers": again}), stops.last))
    assert first[1].halted
    for gone, cleaning in (first, clean(daemon, case), clean(daemon, case, mistaken(case))):
        assert gone == set()
        assert cleaning.halted == first[1].halted
        assert all(outcome.refusals[0].reason is Reason.HALTED for outcome in cleaning.outcomes)


@_LONGER
@given(cleanup_inputs(), st.frozensets(ips, max_size=2))
def test_a_sandbox_is_released_whole_or_not_and_the_report_says_so(
    case: CleanupInput, broken: frozenset[str]
) -> None:
    """Though some of its files cannot be removed."""
    daemon = daemon_for(case, broken)
    gone, cleaning = clean(daemon, case)
    for container_id in IDS:
        whole = {
            name
            for name, entry in reserved(case.last).items()
            if entry.container_id == container_id
        }
        assert whole & gone in (set(), whole)
    released = [outcome for outcome in cleaning.outcomes if outcome.verdict is Verdict.RELEASED]
    assert {
        (leak.network, leak.ip) for outcome in released for leak in outcome.request.reservations
    } == gone
    entries = [entry.name for entry in daemon.journal.entries.values() if entry.released]
    assert [outcome.entry for outcome in released] == entries
    for outcome in cleaning.outcomes:
        assert bool(outcome.refusals) is (outcome.verdict is Verdict.REFUSED)
        assert all(refusal.why for refusal in outcome.refusals)
    for network, before in cleaning.free_before.items():
        after = cleaning.free_after[network]
        assert (before is None) is (after is None)
        if before is not None and after is not None:
            assert 0 <= after - before <= sum(name[0] == network for name in gone)


@_LONGER
@given(st.one_of(cleanup_inputs(odd_nodes), cleanup_inputs(nodes())))
def test_a_guard_refuses_or_accepts_and_never_raises(case: CleanupInput) -> None:
    for request, refusals in guards.decide(guard_context(*case.snapshots, limits=case.limits)):
        assert request.reservations
        assert all(refusal.why for refusal in refusals)
    clean(daemon_for(case), case, mistaken(case))
