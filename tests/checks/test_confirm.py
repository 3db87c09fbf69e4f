"""A finding is confirmed if the snapshot before had it too, and it lasted for `confirm_after` of the boot clock."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from agent.checks.confirm import ConfirmationState, Detected, clock_stepped, confirm
from agent.model.finding import Finding, SkippedCheck, TrackedFinding
from tests.builders import NOW, UPTIME, node

PERIOD = timedelta(seconds=30)
STUCK = Finding("stuck_teardown", "kubenet/10.244.1.9", "it is stuck", since=NOW, identity=("id",))
OTHER = Finding("shared_ip", "10.244.1.2 of two", "they share")


class Syncs:
    """Syncs of one agent: each takes some seconds, and remembers."""

    def __init__(self, confirm_after: timedelta = PERIOD) -> None:
        self.memory = ConfirmationState(NOW, UPTIME, {})
        self._period, self._wall, self._uptime = confirm_after, NOW, UPTIME

    def sync(
        self, seconds: float, *findings: Finding, gaps: tuple[str, ...] = (), clock_set_by: float = 0
    ) -> tuple[TrackedFinding, ...]:
        """Run the next sync after some seconds."""
        self._wall += timedelta(seconds=seconds + clock_set_by)
        self._uptime += timedelta(seconds=seconds)
        detected = Detected(findings, tuple(SkippedCheck(detector, "no word") for detector in gaps))
        snapshot = replace(node(), taken_at=self._wall, uptime=self._uptime)
        tracked, observations = confirm(detected, self.memory, snapshot, self._period)
        self.memory = ConfirmationState(self._wall, self._uptime, observations)
        return tracked

    def confirms(self, seconds: float, *findings: Finding, gaps: tuple[str, ...] = (), clock_set_by: float = 0) -> bool:
        return self.sync(seconds, *findings, gaps=gaps, clock_set_by=clock_set_by)[0].confirmed


def test_a_finding_that_lasts_is_confirmed() -> None:
    syncs = Syncs()
    assert [syncs.confirms(15, STUCK) for _ in range(4)] == [False, False, True, True]
    (tracked,) = syncs.sync(0, replace(STUCK, message="and still"))
    assert (tracked.finding.message, tracked.first_seen) == ("and still", NOW + timedelta(seconds=15))


def test_one_snapshot_never_confirms_and_two_are_enough_for_what_is_urgent() -> None:
    assert not Syncs(timedelta(0)).confirms(3600, STUCK)
    at_once, urgent = Syncs(timedelta(0)), Syncs()
    assert [at_once.confirms(0, STUCK) for _ in range(2)] == [False, True]
    assert [urgent.confirms(1, replace(STUCK, urgent=True)) for _ in range(2)] == [False, True]


@given(
    st.lists(st.tuples(st.sampled_from([15, 0, 30]), st.integers(0, 4).map(bool)), min_size=1, max_size=12),
    st.sampled_from([30, 0, 15, 60]).map(lambda n: timedelta(seconds=n)),
)
def test_exactly_the_uninterrupted_runs_of_confirm_after_are_confirmed(
    snapshots: list[tuple[int, bool]], confirm_after: timedelta
) -> None:
    syncs, since, now = Syncs(confirm_after), None, timedelta(0)
    for seconds, there in snapshots:
        now += timedelta(seconds=seconds)
        tracked = syncs.sync(seconds, *[STUCK] * there)
        if not there:
            since = None
        elif since is None:
            since = now
            assert not tracked[0].confirmed, "one snapshot is never enough"
        else:
            assert tracked[0].confirmed is (now - since >= confirm_after)


def test_another_file_under_the_same_name_is_another_finding() -> None:
    syncs = Syncs()
    syncs.sync(0, STUCK)
    assert not syncs.confirms(60, replace(STUCK, identity=("another inode",)))


def test_without_other_evidence_a_finding_begins_when_first_seen() -> None:
    syncs = Syncs()
    syncs.sync(0, OTHER)
    assert syncs.sync(60, OTHER)[0].since == NOW


def test_a_finding_that_is_gone_is_forgotten() -> None:
    syncs = Syncs()
    for n in range(5):
        syncs.sync(15, replace(STUCK, identity=(n,)))
    assert syncs.memory is not None
    assert len(syncs.memory.observations) == 1


# Gaps


def test_where_its_detector_has_a_gap_a_candidate_starts_over_and_a_confirmed_finding_stays_known() -> None:
    candidate, confirmed, of_another = Syncs(), Syncs(), Syncs()
    candidate.sync(0, STUCK)
    candidate.sync(20, gaps=(STUCK.detector,))
    assert not candidate.confirms(20, STUCK)
    for syncs in (confirmed, of_another):
        syncs.sync(0, STUCK)
        syncs.sync(30, STUCK)
    for _ in range(3):
        assert confirmed.sync(30, gaps=(STUCK.detector,)) == ()
    (tracked,) = confirmed.sync(30, STUCK)
    assert (tracked.confirmed, tracked.first_seen) == (True, NOW)
    of_another.sync(1, gaps=(OTHER.detector,))
    assert not of_another.confirms(1, STUCK)


def test_a_finding_reported_despite_a_gap_keeps_its_age() -> None:
    syncs = Syncs()
    syncs.sync(0, STUCK, gaps=(STUCK.detector,))
    assert syncs.confirms(30, STUCK, gaps=(STUCK.detector,))


# Clocks


def test_a_clock_step_restarts_candidates_and_keeps_confirmed_findings() -> None:
    for step in (-86400, -6, 6, 86400):
        syncs = Syncs()
        syncs.sync(0, STUCK)
        assert not syncs.confirms(60, STUCK, clock_set_by=step)
        assert syncs.confirms(30, STUCK)
        assert syncs.confirms(15, STUCK, clock_set_by=step)


def test_a_slewed_clock_is_no_step_and_the_boot_clock_measures() -> None:
    for step in (-4, 4):
        syncs = Syncs()
        syncs.sync(0, STUCK)
        assert not syncs.confirms(29, STUCK, clock_set_by=step)
        assert syncs.confirms(1, STUCK)


def test_a_suspended_node_has_no_clock_step() -> None:
    night = timedelta(hours=8)  # the boot clock counts sleep, as the wall clock does
    assert not clock_stepped(ConfirmationState(NOW, UPTIME, {}), node(later=night))
