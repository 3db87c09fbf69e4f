"""A finding is confirmed if the snapshot before had it too, and it lasted for `confirm_after` of the boot clock."""

from dataclasses import replace
from datetime import timedelta

import pytest

from agent.checks.confirm import ConfirmationState, clock_stepped, confirm
from agent.model.finding import Finding, Gap, TrackedFinding
from tests.builders import NOW, UPTIME, node

PERIOD = timedelta(seconds=30)
STUCK = Finding("stuck_teardown", "kubenet/10.244.1.9", "it is stuck", since=NOW, identity=("id",))
OTHER = Finding("shared_ip", "10.244.1.2 of two", "they share")


class Syncs:
    """Syncs of one agent: each takes some seconds, and remembers."""

    def __init__(self, confirm_after: timedelta = PERIOD) -> None:
        self.memory: ConfirmationState | None = None
        self._period, self._wall, self._uptime = confirm_after, NOW, UPTIME

    def sync(
        self, seconds: float, *findings: Finding, gaps: tuple[str, ...] = (), clock_set_by: float = 0
    ) -> TrackedFinding:
        """Run the next sync after some seconds; return the first finding as tracked."""
        tracked = self.sync_all(seconds, *findings, gaps=gaps, clock_set_by=clock_set_by)
        return tracked[0]

    def sync_all(
        self, seconds: float, *findings: Finding, gaps: tuple[str, ...] = (), clock_set_by: float = 0
    ) -> tuple[TrackedFinding, ...]:
        self._wall += timedelta(seconds=seconds + clock_set_by)
        self._uptime += timedelta(seconds=seconds)
        gap_records = tuple(Gap(detector, "no word") for detector in gaps)
        snapshot = replace(node(), taken_at=self._wall, uptime=self._uptime)
        tracked, observations = confirm(findings, gap_records, self.memory, snapshot, self._period)
        self.memory = ConfirmationState(self._wall, self._uptime, observations)
        return tracked


def test_a_finding_seen_once_is_a_candidate() -> None:
    tracked = Syncs().sync(0, STUCK)
    assert (tracked.confirmed, tracked.first_seen) == (False, NOW)


def test_a_finding_that_lasts_is_confirmed() -> None:
    syncs = Syncs()
    assert [syncs.sync(15, STUCK).confirmed for _ in range(4)] == [False, False, True, True]


def test_an_urgent_finding_is_confirmed_by_the_second_snapshot() -> None:
    syncs = Syncs()
    urgent = replace(STUCK, urgent=True)
    assert [syncs.sync(1, urgent).confirmed for _ in range(2)] == [False, True]


def test_one_snapshot_never_confirms_however_late_it_is() -> None:
    assert not Syncs(timedelta(0)).sync(3600, STUCK).confirmed


def test_without_confirm_after_two_snapshots_are_enough() -> None:
    syncs = Syncs(timedelta(0))
    assert [syncs.sync(0, STUCK).confirmed for _ in range(2)] == [False, True]


def test_a_candidate_that_disappears_starts_over() -> None:
    syncs = Syncs()
    syncs.sync_all(0, STUCK)
    syncs.sync_all(40)
    assert not syncs.sync(0, STUCK).confirmed
    assert not syncs.sync(29, STUCK).confirmed
    assert syncs.sync(1, STUCK).confirmed


def test_a_confirmed_finding_that_disappears_starts_over() -> None:
    syncs = Syncs()
    syncs.sync_all(0, STUCK)
    assert syncs.sync(30, STUCK).confirmed
    syncs.sync_all(1)
    assert not syncs.sync(1, STUCK).confirmed


def test_another_file_under_the_same_name_is_another_finding() -> None:
    syncs = Syncs()
    syncs.sync_all(0, STUCK)
    assert not syncs.sync(60, replace(STUCK, identity=("another inode",))).confirmed


def test_the_message_may_change_while_the_finding_is_the_same() -> None:
    syncs = Syncs()
    syncs.sync_all(0, OTHER)
    assert syncs.sync(60, replace(OTHER, message="they share still")).finding.message == "they share still"
    assert syncs.sync(60, replace(OTHER, message="and still")).confirmed


def test_without_other_evidence_a_finding_begins_when_first_seen() -> None:
    syncs = Syncs()
    syncs.sync_all(0, OTHER)
    assert syncs.sync(60, OTHER).since == NOW


# Gaps


def test_candidates_are_dropped_if_their_detector_has_insufficient_data() -> None:
    syncs = Syncs()
    syncs.sync_all(0, STUCK)
    syncs.sync_all(20, gaps=(STUCK.detector,))
    assert not syncs.sync(20, STUCK).confirmed


def test_confirmed_findings_stay_if_their_detector_has_insufficient_data() -> None:
    syncs = Syncs()
    syncs.sync_all(0, STUCK)
    syncs.sync_all(30, STUCK)
    for _ in range(3):
        assert syncs.sync_all(30, gaps=(STUCK.detector,)) == ()
    tracked = syncs.sync(30, STUCK)
    assert (tracked.confirmed, tracked.first_seen) == (True, NOW)


def test_a_finding_reported_despite_a_gap_keeps_its_age() -> None:
    syncs = Syncs()
    syncs.sync_all(0, STUCK, gaps=(STUCK.detector,))
    assert syncs.sync(30, STUCK, gaps=(STUCK.detector,)).confirmed


def test_a_gap_of_another_detector_keeps_no_finding() -> None:
    syncs = Syncs()
    syncs.sync_all(0, STUCK)
    syncs.sync_all(30, STUCK)
    syncs.sync_all(1, gaps=(OTHER.detector,))
    assert not syncs.sync(1, STUCK).confirmed


def test_a_finding_that_is_gone_is_forgotten() -> None:
    syncs = Syncs()
    for n in range(50):
        syncs.sync_all(15, replace(STUCK, identity=(n,)))
    assert syncs.memory is not None
    assert len(syncs.memory.observations) == 1


# Clocks


@pytest.mark.parametrize("step", [-86400, -6, 6, 86400])
def test_a_clock_step_restarts_candidates(step: int) -> None:
    syncs = Syncs()
    syncs.sync_all(0, STUCK)
    assert not syncs.sync(60, STUCK, clock_set_by=step).confirmed
    assert syncs.sync(30, STUCK).confirmed


@pytest.mark.parametrize("step", [-86400, 86400])
def test_a_clock_step_keeps_confirmed_findings(step: int) -> None:
    syncs = Syncs()
    syncs.sync_all(0, STUCK)
    syncs.sync_all(30, STUCK)
    assert syncs.sync(15, STUCK, clock_set_by=step).confirmed


@pytest.mark.parametrize("step", [-4, 4])
def test_a_slewed_clock_is_no_clock_step(step: int) -> None:
    syncs = Syncs()
    syncs.sync_all(0, STUCK)
    assert syncs.sync(30, STUCK, clock_set_by=step).confirmed


def test_confirm_after_is_measured_by_the_boot_clock() -> None:
    syncs = Syncs()
    syncs.sync_all(0, STUCK)
    # Twenty-nine seconds on the boot clock, thirty-three on the wall.
    assert not syncs.sync(29, STUCK, clock_set_by=4).confirmed


def test_the_first_snapshot_has_no_clock_step() -> None:
    assert not clock_stepped(None, NOW, UPTIME)


def test_a_suspended_node_is_no_clock_step() -> None:
    # The boot clock counts sleep, as the wall clock does.
    night = timedelta(hours=8)
    assert not clock_stepped(ConfirmationState(NOW, UPTIME, {}), NOW + night, UPTIME + night)
