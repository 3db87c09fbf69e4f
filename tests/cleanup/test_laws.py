"""What holds for every cleanup on any node. The recheck finds no owner, if not said otherwise: the guards protect."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from agent.checks import engine
from agent.cleanup import guards
from agent.cleanup.journal import Entry
from agent.cleanup.run import Apply, Budget
from agent.model.assessment import State
from agent.model.release import Cleaning, Reason, Verdict
from agent.model.report import Report
from agent.model.snapshot import SOURCES, Address, Checkpoint, Container, Known, NotRequested, Reservation, Snapshot
from tests.builders import NON_ADDRESS_SOURCES, NOW, guard_context, pod, reservation, without
from tests.cleanup.file_operations import Files, InMemoryJournal, Owners, image
from tests.strategies import IDS, IPS, CleanupInput, cleanup_inputs, ids, ips, leaky_nodes, nodes, odd_nodes

_PROFILE = settings.get_profile(settings.get_current_profile_name())
_LONGER = settings(max_examples=_PROFILE.max_examples * 3)
_LONGEST = settings(max_examples=_PROFILE.max_examples * 8)
UNBOUNDED = Budget()

Name = tuple[str, str]


def reserved(snapshot: Snapshot) -> dict[Name, Reservation]:
    return {
        (reservation.network, reservation.ip): reservation
        for store in snapshot.reservations
        if isinstance(store.reading, Known)
        for reservation in store.reading.value
    }


def owned(snapshot: Snapshot) -> set[Name]:
    """Return the owned addresses, computed without any code of the agent."""
    containers = {container.id for container in _items(snapshot.containers)} | {
        checkpoint.container_id for checkpoint in _items(snapshot.checkpoints)
    }
    live = [pod for pod in _items(snapshot.pods) if pod.phase not in {"Succeeded", "Failed"} and not pod.host_network]
    addresses = {address.ip for address in _items(snapshot.addresses)} | {ip for pod in live for ip in pod.ips}
    return {
        name
        for name, reservation in reserved(snapshot).items()
        if reservation.ip in addresses or (reservation.container_id and reservation.container_id in containers)
    }


def _items(reading: Any) -> tuple[Any, ...]:
    return reading.value if isinstance(reading, Known) else ()


@dataclass
class Cleaned:
    """What a cleaner really did, and what it reports."""

    before: dict[Name, Reservation]
    after: set[Name]
    cleaning: Cleaning

    @property
    def removed(self) -> set[Name]:
        return set(self.before) - self.after


@dataclass
class Daemon:
    """An applying cleaner on the files of the last snapshot of each sync."""

    input: CleanupInput
    budget: Budget = UNBOUNDED
    journal: InMemoryJournal = field(default_factory=InMemoryJournal)
    broken: frozenset[str] = frozenset()
    """Addresses whose file cannot be removed."""
    owners: Owners = field(default_factory=Owners)

    def __post_init__(self) -> None:
        self._files, self._ticks = Files(), NOW
        session = self.input.limits, self.budget, "run", self.journal, self.owners.recheck(), self._files
        self._cleaner = Apply(*session, now=self._now, lock_timeout=0)

    def _now(self) -> Any:
        self._ticks += timedelta(microseconds=1)
        return self._ticks

    def clean(self, report: Report | None = None, snapshots: tuple[Snapshot, ...] = ()) -> Cleaned:
        snapshots = snapshots or self.input.snapshots
        before = reserved(snapshots[-1])
        self._files.files.clear()
        self._files.files.update({name: image(reservation) for name, reservation in before.items()})
        self._files.broken = set(self.broken)
        self._cleaner.before_snapshot()
        report_now = report or engine.replay(snapshots, grace=self.input.limits.grace, confirm_after=timedelta(0))
        cleaning = self._cleaner.after_snapshot(snapshots, report_now)
        return Cleaned(before, set(self._files.files), cleaning)


def removed(case: CleanupInput, **more: Any) -> set[Name]:
    return Daemon(case, **more).clean().removed


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
    find(
        cleanup_inputs(leaky_nodes()),
        lambda case: bool(removed(case)) and case.first.containers != case.last.containers,
        settings=looking,
    )


# Owners


@_LONGEST
@given(cleanup_inputs())
def test_an_address_with_an_owner_in_the_last_snapshot_is_never_released(case: CleanupInput) -> None:
    assert not removed(case) & owned(case.last)


@_LONGEST
@given(cleanup_inputs())
def test_an_owned_address_is_not_released_even_if_everything_is_classified_as_leaked(case: CleanupInput) -> None:
    """The recheck finds the owners."""
    assert not Daemon(case, owners=truthful(case.last)).clean(mistaken(case)).removed & owned(case.last)


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
        kept_ones = Daemon(CleanupInput(first, also(last, owner), case.limits)).clean()
        assert (leak.network, ip) not in kept_ones.removed


def with_it(snapshot: Snapshot, entry: Reservation) -> Snapshot:
    """Put a file into the first network, in the place of what has its name."""
    store = snapshot.reservations[0]
    others = tuple(reservation for reservation in _items(store.reading) if reservation.ip != entry.ip)
    strange = tuple(unrecognized for unrecognized in store.unrecognized if unrecognized.name != entry.ip)
    changed = replace(store, reading=Known((*others, entry)), unrecognized=strange)
    return replace(snapshot, reservations=(changed, *snapshot.reservations[1:]))


def also(snapshot: Snapshot, records: Mapping[str, Any]) -> Snapshot:
    """Add a thing to each of some sources, which were read then."""
    changed: dict[str, Any] = {
        source: Known((*_items(getattr(snapshot, source)), thing)) for source, thing in records.items()
    }
    return replace(snapshot, **changed)


# Unavailable sources


@_LONGER
@given(cleanup_inputs(), st.sampled_from(sorted({*SOURCES} - {*NON_ADDRESS_SOURCES})))
def test_with_any_source_unavailable_nothing_is_released(case: CleanupInput, source: str) -> None:
    cleaned = Daemon(replace(case, last=without(case.last, source))).clean()
    assert cleaned.removed == set()
    assert {outcome.verdict for outcome in cleaned.cleaning.outcomes} <= {Verdict.REFUSED}


@_LONGER
@given(cleanup_inputs(leaky_nodes()), st.sampled_from(["checkpoints", "containers", "addresses", "processes"]))
def test_a_source_not_requested_is_not_treated_as_empty(case: CleanupInput, source: str) -> None:
    changed: dict[str, Any] = {source: NotRequested(source, "it was left alone")}
    incomplete = replace(case, last=replace(case.last, **changed))
    if source != "processes" or case.limits.settle:
        # An empty file names no sandbox that could have a checkpoint.
        gone = {
            name for name in removed(incomplete) if source != "checkpoints" or reserved(case.last)[name].container_id
        }
        assert gone == set()


# Limits


@_LONGER
@given(cleanup_inputs(leaky_nodes()), st.integers(0, 4), st.integers(0, 4), st.data())
def test_no_sync_exceeds_a_release_limit(case: CleanupInput, a_round: int, an_hour: int, data: st.DataObject) -> None:
    """An hour's: with what is in the journal, whoever wrote it and whenever."""
    ago = data.draw(st.lists(st.tuples(st.integers(-5, 90), st.sampled_from(["run", "clean"])), max_size=4))
    journal = InMemoryJournal(*(earlier(n, minutes, by) for n, (minutes, by) in enumerate(ago)))
    budget = Budget(per_sync=("--max-per-sync", a_round), per_hour=("--max-per-hour", an_hour))
    spent = sum(by == "run" and minutes < 60 for minutes, by in ago)
    cleaned = Daemon(case, budget=budget, journal=journal).clean()
    assert len(cleaned.removed) <= min(a_round, max(0, an_hour - spent))


def earlier(number: int, minutes: int, actor: str) -> Entry:
    """Return the release of an address that is nowhere any more."""
    lost = reservation("10.0.0.99", f"{number:x}f" * 32)
    at = NOW - timedelta(minutes=minutes)
    return Entry(str(number), at, actor, lost.container_id, "", (image(lost),), Verdict.RELEASED)


@_LONGER
@given(cleanup_inputs())
def test_only_old_enough_leaks_of_both_snapshots_are_released(case: CleanupInput) -> None:
    before, last = reserved(case.first), reserved(case.last)
    for name in removed(case):
        assert before[name] == last[name]
        assert case.last.taken_at - last[name].mtime >= case.limits.grace


@_LONGER
@given(cleanup_inputs(), st.frozensets(ips, max_size=2))
def test_all_addresses_of_a_sandbox_are_released_or_none(case: CleanupInput, broken: frozenset[str]) -> None:
    """Though some of its files cannot be removed."""
    gone = removed(case, broken=broken)
    for container_id in IDS:
        whole = {name for name, entry in reserved(case.last).items() if entry.container_id == container_id}
        assert whole & gone in (set(), whole)


# Order, session, report


@_LONGER
@given(cleanup_inputs(), cleanup_inputs())
def test_a_halted_cleaner_never_releases_again(stops: CleanupInput, case: CleanupInput) -> None:
    lost = reservation(IPS[0], IDS[0])
    journal = InMemoryJournal(
        Entry("1", NOW - timedelta(hours=2), "run", lost.container_id, "", (image(lost),), Verdict.RELEASED)
    )
    daemon = Daemon(case, journal=journal)
    again = Container(lost.container_id, "exited", 0, "", "", sandbox=True)
    first = daemon.clean(snapshots=(also(stops.first, {"containers": again}), stops.last))
    assert first.cleaning.halted
    for cleaned in (first, daemon.clean(), daemon.clean(mistaken(case))):
        assert cleaned.removed == set()
        assert cleaned.cleaning.halted == first.cleaning.halted
        assert all(outcome.refusals[0].reason is Reason.HALTED for outcome in cleaned.cleaning.outcomes)


@_LONGER
@given(cleanup_inputs(), st.frozensets(ips, max_size=2))
def test_the_report_matches_what_was_done(case: CleanupInput, broken: frozenset[str]) -> None:
    daemon = Daemon(case, broken=broken)
    cleaned = daemon.clean()
    released = [outcome for outcome in cleaned.cleaning.outcomes if outcome.verdict is Verdict.RELEASED]
    assert {(x.network, x.ip) for outcome in released for x in outcome.request.reservations} == cleaned.removed
    assert [outcome.entry for outcome in released] == [
        entry.name for entry in daemon.journal.entries.values() if entry.released
    ]
    for outcome in cleaned.cleaning.outcomes:
        assert bool(outcome.refusals) is (outcome.verdict is Verdict.REFUSED)
        assert all(refusal.why for refusal in outcome.refusals)
    for network, before in cleaned.cleaning.free_before.items():
        after = cleaned.cleaning.free_after[network]
        assert (before is None) is (after is None)
        if before is not None and after is not None:
            assert 0 <= after - before <= sum(name[0] == network for name in cleaned.removed)


@_LONGER
@given(st.one_of(cleanup_inputs(odd_nodes), cleanup_inputs(nodes())))
def test_a_guard_refuses_or_accepts_and_never_raises(case: CleanupInput) -> None:
    for request, refusals in guards.decide(guard_context(*case.snapshots, limits=case.limits)):
        assert request.reservations
        assert len({refusal.reason for refusal in refusals}) <= len(refusals)
    Daemon(case).clean(mistaken(case))
