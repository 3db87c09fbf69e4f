"""Leaks: which reservations are reported, their likely cause, and which missing data prevents the check."""

from datetime import timedelta
from functools import partial

from agent.model.finding import LeakCause, TrackedFinding
from agent.model.snapshot import Checkpoint, Container, Snapshot
from tests import builders as b
from tests.builders import CIDR, GONE, NOW, OLD, WEB_ID, empty_file, node, processes, reservation, scanned, without

DETECTOR = "leaked_reservation"
leaks = partial(b.findings_of, DETECTOR)
LOST = reservation("10.244.1.9")
AN_HOUR_AGO = timedelta(hours=1)
KUBELET_RESTART = LeakCause.KUBELET_RESTART


def test_a_leak_has_its_address_its_container_and_its_pod() -> None:
    (finding,) = leaks(node(LOST))
    assert finding.subject == "kubenet/10.244.1.9"
    assert (finding.detector, finding.network) == ("leaked_reservation", "kubenet")
    (finding,) = leaks(node(LOST, b.cni_result(GONE, "shop/cart", CIDR)))
    assert finding.pod == "shop/cart"
    assert "of pod shop/cart" in finding.message
    subjects = [finding.subject for finding in leaks(node(LOST, reservation("fd00::9")))]
    assert subjects == ["kubenet/10.244.1.9", "kubenet/fd00::9"]
    both = leaks(node(LOST, reservation("10.244.1.9", "8" * 64, network="storage")))
    assert ("leaked_reservation", "kubenet/10.244.1.9", GONE, LOST.inode, LOST.size, LOST.mtime_ns) == both[0].key
    assert {finding.network for finding in both} == {"kubenet", "storage"}
    (before,), (after,) = leaks(node(LOST)), leaks(node(reservation(LOST.ip, age=OLD / 2)))
    assert before.subject == after.subject
    assert before.key != after.key


# Causes


def test_the_likely_cause_is_the_process_that_restarted_since() -> None:
    hour, unknown = AN_HOUR_AGO, LeakCause.UNKNOWN
    for since_then, cause, began in (
        (processes(), unknown, OLD),
        (processes(kubelet=hour), LeakCause.KUBELET_RESTART, hour),
        (processes(docker=hour), LeakCause.RUNTIME_RESTART, hour),
        (processes(kubelet=hour, docker=hour * 1.5), LeakCause.KUBELET_RESTART, hour),
        (processes(booted=hour, kubelet=hour / 2, docker=hour / 2), LeakCause.NODE_REBOOT, hour),
        (processes(kubelet=None, docker=hour), LeakCause.RUNTIME_RESTART, hour),
        (processes(kubelet=None, docker=None), unknown, OLD),
    ):
        (finding,) = leaks(node(LOST, processes=[since_then]))
        assert (finding.cause, finding.cause_at) == (cause, NOW - began)
        # Without an earlier snapshot, nobody knows whether it had leaked before that start.
        assert finding.since == (NOW - OLD if cause is unknown else None)
        time = f"{NOW - began:%Y-%m-%d %H:%M:%S}Z"
        # A first scan cannot know whether an earlier restart did it.
        assert finding.message.endswith(f"reserved at {time}" if cause is unknown else f" at {time} or earlier")
    # A start soon after the reservation dates the leak.
    for later, since in ((timedelta(minutes=5), NOW - OLD + timedelta(minutes=5)), (timedelta(minutes=6), None)):
        (finding,) = leaks(node(LOST, processes=[processes(kubelet=OLD - later)]))
        assert (finding.cause, finding.since) == (KUBELET_RESTART, since)
    (finding,) = leaks(node(empty_file("10.244.1.9"), processes=[processes(kubelet=AN_HOUR_AGO)]))
    assert (finding.cause, finding.since) == (LeakCause.EMPTY_FILE, NOW - OLD)
    assert "no container (the file is empty)" in finding.message
    (finding,) = leaks(without(node(LOST), "processes"))
    assert (finding.cause, finding.since) == (LeakCause.UNKNOWN, NOW - OLD)


# Since when


def test_a_leak_is_dated_by_the_snapshot_that_last_found_its_owner() -> None:
    """A start of the kubelet only bounds the age of a leak that is seen for the first time."""
    minute, owner = timedelta(minutes=1), (b.sandbox(GONE, "shop/cart"), Checkpoint(GONE, "shop/cart"))
    old = reservation("10.244.1.9", age=timedelta(days=9))

    def restarted(ago: timedelta, *things: Container | Checkpoint, later: timedelta) -> Snapshot:
        return node(old, *things, processes=[processes(kubelet=ago)], later=later)

    def leak(*snapshots: Snapshot) -> TrackedFinding:
        (found,) = scanned(*snapshots).findings
        return found

    ten_minutes = timedelta(minutes=10)
    tracked = leak(restarted(ten_minutes, later=minute), restarted(ten_minutes, later=2 * minute))
    assert (tracked.finding.cause, tracked.began, tracked.since) == (KUBELET_RESTART, None, NOW + minute)
    assert tracked.finding.message.endswith("kubelet restart at 2026-03-26 19:50:00Z or earlier")
    # It had an owner, and the kubelet has started since.
    owned = node(old, *owner)
    tracked = leak(owned, *(restarted(-minute / 2, later=later * minute) for later in (1, 2)))
    assert (tracked.finding.cause, tracked.began) == (KUBELET_RESTART, NOW + minute / 2)
    # It had an owner after the kubelet's start: long after, and shortly after.
    for ago, cause in ((ten_minutes * 2, LeakCause.UNKNOWN), (ten_minutes, KUBELET_RESTART)):
        tracked = leak(*(restarted(ago, *owner[: 2 - 2 * later], later=min(later, 2) * minute) for later in (0, 1, 2)))
        assert (tracked.finding.cause, tracked.began) == (cause, NOW)
    # A snapshot from before the clock was set dates nothing.
    tracked = leak(owned, *(node(old, later=n * minute, clock_set_by=timedelta(days=1)) for n in (1, 2, 3)))
    assert tracked.began == NOW - timedelta(days=9)
    # A later restart did not cause it.
    tracked = leak(node(old), node(old, later=minute), restarted(-minute, later=2 * minute))
    assert (tracked.finding.cause, tracked.began) == (LeakCause.UNKNOWN, NOW - timedelta(days=9))


# Blind


def test_without_its_sources_the_check_has_insufficient_data_after_what_is_certain() -> None:
    for source in ("containers", "checkpoints", "addresses", "pods", "reservations"):
        assert b.gap_of(DETECTOR, without(node(LOST), source)).startswith(source)
    assert len(leaks(b.without_api(node(LOST)))) == 1
    findings, gap = b.findings_and_gap(DETECTOR, without(node(empty_file("10.244.1.9")), "containers"))
    assert [finding.subject for finding in findings] == ["kubenet/10.244.1.9"]
    assert gap.why.startswith("containers")
    (gap,) = scanned(node(reservation("10.244.1.9", age=timedelta(hours=-1)))).gaps
    assert (gap.detector, gap.broken) == (DETECTOR, False)
    assert gap.why == "reservations: file kubenet/10.244.1.9 is newer than the node's clock, which was set"
    assert scanned(node(reservation("10.244.1.2", WEB_ID, age=timedelta(hours=-1)))).gaps == ()
