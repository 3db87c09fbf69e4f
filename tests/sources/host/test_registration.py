"""Registration data on the node: kept across snapshots, stored on disk, and read from the kubelet's flags."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from agent.model.documents import LAST_SEEN_FILE, dump_last_seen
from agent.model.registration import (
    DELETION_CANDIDATE,
    TO_BE_DELETED,
    Expected,
    LastSeen,
    Registration,
    Removal,
    Taint,
)
from agent.model.snapshot import LATEST, Known, Node, NotRequested, Pod, Reading, Unavailable
from agent.sources.host.registration import RegistrationTracker
from agent.sources.source_error import SourceError
from tests.builders import INSTANCE, NOW, PODS, WORKER_UID, last_seen, pod, worker

Pods = Reading[tuple[Pod, ...]]
NodeObject = Reading[Node | None]
DAY, MINUTE, NOTHING = timedelta(days=1), timedelta(minutes=1), timedelta(0)
LATER = NOW + timedelta(seconds=15)
IN_ORDER: NodeObject = Known(worker(provider_id=INSTANCE))
GONE: NodeObject = Known(None)
NO_PODS: Pods = Known(())


def kubelet(**flags: str) -> Callable[..., Mapping[str, str]]:
    """Return what reads the flags of a kubelet; without any, it has ended."""

    def read(*names: str) -> Mapping[str, str]:
        if not flags:
            raise SourceError("it has ended")
        return {
            name: value
            for name in names
            if (value := flags.get(name.replace("-", "_"))) is not None
        }

    return read


class Tracker:
    """What is known of a node's registration, from one snapshot to the next."""

    def __init__(
        self,
        state: Path,
        flags: Callable[..., Mapping[str, str]] | None = None,
        expected: Expected = Expected.AUTO,
        latest: Callable[[], Node | None] = lambda: None,
    ) -> None:
        flags = flags or kubelet()
        self._tracker = RegistrationTracker(
            "worker-1", expected, state, flags, state / "proc", latest
        )

    def read(self, node: NodeObject, pods: Pods = NO_PODS, at: datetime = NOW) -> Registration:
        return self._tracker.read(node, pods, at).known()

    def last(self, node: NodeObject = GONE, pods: Pods = NO_PODS, at: datetime = LATER) -> LastSeen:
        last = self.read(node, pods, at).last
        assert last is not None
        return last


def test_a_healthy_node_is_recorded_without_flags_and_a_deleted_one_keeps_its_record(
    tmp_path: Path,
) -> None:
    tracker = Tracker(tmp_path)
    tracker.read(IN_ORDER)
    found, seen = (
        tracker.read(GONE, Known(PODS), LATER),
        LastSeen("worker-1", WORKER_UID, INSTANCE, NOW, gone=LATER),
    )
    assert (found.last, found.listed_pods) == (seen, 3)
    assert tracker.last(Unavailable("node", "timed out")) == seen
    assert tracker.last(IN_ORDER) == LastSeen("worker-1", WORKER_UID, INSTANCE, LATER)
    healthy = Tracker(
        tmp_path, lambda *_: pytest.fail("no flag is needed"), Expected.REQUIRED
    ).read(IN_ORDER)
    assert healthy == Registration(
        Expected.REQUIRED, LastSeen("worker-1", WORKER_UID, INSTANCE, NOW)
    )


def test_the_record_of_an_earlier_agent_is_read_and_an_unreadable_one_reported(
    tmp_path: Path,
) -> None:
    before, endless = last_seen(provider_id="kind://a"), LATEST
    drained = last_seen(removal=Removal.DRAINED, in_use=10 * MINUTE)
    for stored, read in (
        (before, replace(before, gone=NOW)),
        (drained, replace(drained, gone=NOW)),
        (
            replace(before, at=LATER, gone=LATER),
            replace(before, at=NOW, gone=NOW),
        ),  # its clock was ahead
        (replace(before, at=endless, gone=endless), replace(before, at=NOW, gone=NOW)),
        (last_seen(name="worker-2"), None),
    ):
        (tmp_path / LAST_SEEN_FILE).write_text(dump_last_seen(stored))
        assert Tracker(tmp_path).read(GONE).last == read
    (tmp_path / LAST_SEEN_FILE).write_text(dump_last_seen(before))
    changed = Tracker(tmp_path).last(IN_ORDER, at=NOW)
    assert (changed.earlier_id, changed.changed) == ("kind://a", NOW)
    for content in ("damaged", "{}", "x" * (1 << 21)):
        (tmp_path / LAST_SEEN_FILE).write_text(content)
        tracker = Tracker(tmp_path)
        found = tracker.read(GONE)
        assert found.last is None
        assert LAST_SEEN_FILE in (found.why or "")
        tracker.read(IN_ORDER)
        assert tracker.read(GONE).why is None, "what was seen since is known"


DAEMON = replace(pod("kube-system/log"), controller="DaemonSet/log")
STATIC = replace(pod("kube-system/etcd"), static=True)
CORDONED = replace(worker(provider_id=INSTANCE), unschedulable=True)
NOT_KNOWN: Pods = Unavailable("pods", "timed out")


Seen = tuple[timedelta, NodeObject, Pods]


def test_a_cordoned_node_without_pods_to_evict_is_drained_if_that_was_seen_to_begin(
    tmp_path: Path,
) -> None:
    """A spare, and a control plane that is always cordoned, have no pods to evict either."""
    spare: NodeObject = Known(CORDONED)
    another: NodeObject = Known(replace(CORDONED, uid="another", unschedulable=False))
    busy: Pods = Known((DAEMON, pod("shop/bare")))
    empty, still_busy, too_long = (NOTHING, spare, NO_PODS), (NOTHING, spare, busy), DAY + MINUTE
    ended, owned = (
        pod("shop/once", phase="Succeeded"),
        replace(pod("shop/web"), controller="ReplicaSet/web"),
    )
    left: dict[Pods, Removal] = {
        NO_PODS: Removal.DRAINED,
        Known((DAEMON, STATIC)): Removal.DRAINED,
        Known((ended, pod("shop/evicted", deleting=True))): Removal.DRAINED,
        busy: Removal.CORDONED,
        Known((owned,)): Removal.CORDONED,
        NOT_KNOWN: Removal.CORDONED,
    }
    cases: dict[str, tuple[Removal, tuple[Seen, ...]]] = {
        **{
            f"{pods}": (removal, ((NOTHING, IN_ORDER, Known(PODS)), (NOTHING, spare, pods)))
            for pods, removal in left.items()
        },
        "always cordoned": (Removal.CORDONED, ((10 * DAY, spare, NO_PODS), empty)),
        "its pods were not known": (Removal.CORDONED, ((2 * MINUTE, spare, NOT_KNOWN), empty)),
        "its pods went": (
            Removal.DRAINED,
            ((2 * MINUTE, spare, busy), (MINUTE, spare, NOT_KNOWN), empty),
        ),
        "it was cordoned": (Removal.DRAINED, ((DAY, IN_ORDER, NO_PODS), empty)),
        "cordoned too long ago": (Removal.CORDONED, ((too_long, IN_ORDER, NO_PODS), empty)),
        "its pods went within a day": (
            Removal.DRAINED,
            ((DAY, spare, busy), (MINUTE, spare, NO_PODS), empty),
        ),
        "its pods went too long ago": (
            Removal.CORDONED,
            ((too_long, spare, busy), (DAY, spare, NO_PODS), empty),
        ),
        "a pod returned": (
            Removal.DRAINED,
            ((DAY, IN_ORDER, busy), (MINUTE, spare, NO_PODS), still_busy),
        ),
        "a pod stays": (
            Removal.CORDONED,
            ((too_long, IN_ORDER, busy), (MINUTE, spare, NO_PODS), still_busy),
        ),
        "clock was set": (Removal.CORDONED, ((-MINUTE, IN_ORDER, busy), empty)),
        "another Node was in use": (Removal.CORDONED, ((MINUTE, another, busy), empty)),
    }
    for case, (removal, seen) in cases.items():
        tracker = Tracker(tmp_path)
        for ago, node, pods in seen:
            tracker.read(node, pods, NOW - ago)
        gone = tracker.last()
        assert gone.removal is removal, case
        assert tracker.last() == gone, "what is read after the Node has gone proves nothing"


def test_a_scale_down_is_told_by_the_taint_and_a_drain_also_between_two_snapshots(
    tmp_path: Path,
) -> None:
    both, candidate = (
        (Taint(TO_BE_DELETED), Taint(DELETION_CANDIDATE)),
        (Taint(DELETION_CANDIDATE),),
    )
    for taints, unschedulable, removal in (
        (both, True, Removal.SCALE_DOWN),
        (both, False, Removal.SCALE_DOWN),
        (candidate, False, Removal.NONE),
    ):
        tainted = Known(replace(worker(*taints), unschedulable=unschedulable))
        assert Tracker(tmp_path).last(tainted, Known(PODS)).removal is removal
    uncordoned = replace(CORDONED, unschedulable=False)
    cases: tuple[tuple[Node, Node | None, Pods, int, Removal], ...] = (
        (uncordoned, CORDONED, NO_PODS, 39, Removal.DRAINED),
        (uncordoned, CORDONED, Known(PODS), 39, Removal.CORDONED),
        (uncordoned, CORDONED, NO_PODS, 40, Removal.CORDONED),  # its pods may be deleted
        (uncordoned, CORDONED, NO_PODS, -1, Removal.CORDONED),  # the clock was set
        (uncordoned, replace(CORDONED, uid="another"), NO_PODS, 39, Removal.NONE),
        (uncordoned, None, NO_PODS, 39, Removal.NONE),
        (CORDONED, uncordoned, NO_PODS, 39, Removal.NONE),
    )
    for seen, latest, pods, after, removal in cases:
        tracker = Tracker(tmp_path, latest=lambda latest=latest: latest)  # type: ignore[misc]
        tracker.read(Known(seen), Known(PODS))
        assert tracker.last(GONE, pods, NOW + timedelta(seconds=after)).removal is removal


def test_for_an_unhealthy_node_kubelet_name_and_cloud_are_read(tmp_path: Path) -> None:
    """The hostname counts only if it is the name of the Node: a pod that does not share the host's sees its own."""
    assert Tracker(tmp_path).read(GONE) == Registration(), "the kubelet has ended"
    without_id: NodeObject = Known(worker())
    for node in (GONE, without_id):
        for cloud, name in (
            ("external", "worker-9"),
            ("aws", None),
        ):  # then the cloud provider gives the name
            found = Tracker(
                tmp_path, kubelet(hostname_override="Worker-9 ", cloud_provider=cloud)
            ).read(node)
            assert (found.kubelet_name, found.cloud_provider) == (name, cloud)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    for host, name in (
        ("worker-1\n", "worker-1"),
        ("Worker-1\n", "worker-1"),
        ("a-pod-x7\n", None),
    ):
        (tmp_path / "proc/sys/kernel/hostname").write_text(host)
        assert Tracker(tmp_path, kubelet(v="2")).read(GONE).kubelet_name == name
    tracker = RegistrationTracker("worker-1", Expected.AUTO, tmp_path, kubelet(), tmp_path)
    off = tracker.read(NotRequested("node", "--api=off"), NotRequested("pods", "--api=off"), NOW)
    assert off == NotRequested("registration", "--api=off")
