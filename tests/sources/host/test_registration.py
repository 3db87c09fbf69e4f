"""Registration data on the node: kept across snapshots, stored on disk, and read from the kubelet's flags."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
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
from agent.model.snapshot import Known, Node, NotRequested, Pod, Reading, Unavailable
from agent.sources.host.registration import RegistrationTracker
from agent.sources.source_error import SourceError
from tests.builders import INSTANCE, NOW, PODS, WORKER_UID, last_seen, pod, worker

LATER = NOW + timedelta(seconds=15)
IN_ORDER: Reading[Node | None] = Known(worker(provider_id=INSTANCE))
GONE: Reading[Node | None] = Known(None)
NOTHING = timedelta(0)
NO_PODS: Reading[tuple[Pod, ...]] = Known(())


class Kubelet:
    """The flags of a kubelet, and how often they were read."""

    def __init__(self, **flags: str) -> None:
        self.flags = {name.replace("_", "-"): value for name, value in flags.items()}
        self.calls = 0

    def __call__(self, *names: str) -> Mapping[str, str]:
        self.calls += 1
        if not self.flags:
            raise SourceError("it has ended")
        return {name: self.flags[name] for name in names if name in self.flags}


def registrar(
    state: Path,
    kubelet: Kubelet | None = None,
    expected: Expected = Expected.AUTO,
    latest: Callable[[], Node | None] = lambda: None,
) -> RegistrationTracker:
    return RegistrationTracker("worker-1", expected, state, kubelet or Kubelet(), state / "proc", latest)


def known(
    one: RegistrationTracker, node: Reading[Node | None], pods: Reading[tuple[Pod, ...]] = NO_PODS, late: bool = False
) -> Registration:
    return one.read(node, pods, LATER if late else NOW).known()


def removal_of(registration: Registration) -> Removal:
    assert registration.last is not None
    return registration.last.removal


def test_a_healthy_node_is_recorded_and_no_flag_is_read(tmp_path: Path) -> None:
    kubelet = Kubelet(hostname_override="worker-1")
    read_registration = known(registrar(tmp_path, kubelet, Expected.REQUIRED), IN_ORDER)
    assert read_registration == Registration(Expected.REQUIRED, LastSeen("worker-1", WORKER_UID, INSTANCE, NOW))
    assert kubelet.calls == 0


def test_a_deleted_node_keeps_its_last_seen_record(tmp_path: Path) -> None:
    one = registrar(tmp_path)
    known(one, IN_ORDER)
    read_registration = known(one, GONE, Known(PODS), late=True)
    assert (read_registration.last, read_registration.listed_pods) == (
        LastSeen("worker-1", WORKER_UID, INSTANCE, NOW, gone=LATER),
        3,
    )
    assert known(one, Unavailable("node", "timed out"), late=True).last == read_registration.last
    assert known(one, IN_ORDER, late=True).last == LastSeen("worker-1", WORKER_UID, INSTANCE, LATER)


def test_the_record_of_an_earlier_agent_is_loaded(tmp_path: Path) -> None:
    (tmp_path / LAST_SEEN_FILE).write_text(dump_last_seen(last_seen(provider_id="kind://a")))
    assert known(registrar(tmp_path), GONE).last == last_seen(provider_id="kind://a", gone=NOTHING)
    changed = known(registrar(tmp_path), IN_ORDER).last
    assert changed is not None
    assert (changed.earlier_id, changed.changed) == ("kind://a", NOW)


@pytest.mark.parametrize("at", [LATER, datetime.max.replace(tzinfo=UTC)], ids=["its clock was ahead", "no time"])
def test_a_last_seen_time_in_the_future_is_clamped_to_now(tmp_path: Path, at: datetime) -> None:
    (tmp_path / LAST_SEEN_FILE).write_text(dump_last_seen(replace(last_seen(), at=at, gone=at)))
    assert known(registrar(tmp_path), GONE).last == last_seen(NOTHING, gone=NOTHING)


def test_a_record_of_another_node_is_ignored(tmp_path: Path) -> None:
    (tmp_path / LAST_SEEN_FILE).write_text(dump_last_seen(last_seen(name="worker-2")))
    assert known(registrar(tmp_path), GONE).last is None


def test_an_unreadable_record_is_ignored_and_reported(tmp_path: Path) -> None:
    for content in ("damaged", "{}", "x" * (1 << 21)):
        (tmp_path / LAST_SEEN_FILE).write_text(content)
        one = registrar(tmp_path)
        read_registration = known(one, GONE)
        assert read_registration.last is None
        assert LAST_SEEN_FILE in read_registration.why
        known(one, IN_ORDER)
        assert known(one, GONE).why == "", "what was seen since is known"


DAEMON = replace(pod("kube-system/log"), controller="DaemonSet/log")
STATIC = replace(pod("kube-system/etcd"), static=True)
CORDONED = replace(worker(provider_id=INSTANCE), unschedulable=True)


def test_a_cordoned_node_without_pods_to_evict_is_drained(tmp_path: Path) -> None:
    cases: tuple[tuple[Reading[tuple[Pod, ...]], Removal], ...] = (
        (Known(()), Removal.DRAINED),
        (Known((DAEMON, STATIC)), Removal.DRAINED),
        (Known((pod("shop/once", phase="Succeeded"), pod("shop/evicted", deleting=True))), Removal.DRAINED),
        (Known((DAEMON, pod("shop/bare"))), Removal.CORDONED),
        (Known((replace(pod("shop/web"), controller="ReplicaSet/web"),)), Removal.CORDONED),
        (Unavailable("pods", "timed out"), Removal.CORDONED),
    )
    for pods, removal in cases:
        one = registrar(tmp_path)
        known(one, IN_ORDER, Known(PODS))
        known(one, Known(CORDONED), pods)
        gone = known(one, GONE, late=True).last
        assert gone is not None
        assert gone.removal is removal
        assert known(one, GONE).last == gone, "what is read after the Node has gone proves nothing"


DAY, MINUTE = timedelta(days=1), timedelta(minutes=1)
SPARE: Reading[Node | None] = Known(CORDONED)
BUSY: Reading[tuple[Pod, ...]] = Known((DAEMON, pod("shop/bare")))
NOT_KNOWN: Reading[tuple[Pod, ...]] = Unavailable("pods", "timed out")


Seen = list[tuple[timedelta, Reading[Node | None], Reading[tuple[Pod, ...]]]]
ANOTHER: Reading[Node | None] = Known(replace(CORDONED, uid="another", unschedulable=False))
CASES: dict[str, tuple[Seen, Removal]] = {
    "always cordoned": ([(10 * DAY, SPARE, NO_PODS), (NOTHING, SPARE, NO_PODS)], Removal.CORDONED),
    "its pods were not known": ([(2 * MINUTE, SPARE, NOT_KNOWN), (NOTHING, SPARE, NO_PODS)], Removal.CORDONED),
    "its pods went": (
        [(2 * MINUTE, SPARE, BUSY), (MINUTE, SPARE, NOT_KNOWN), (NOTHING, SPARE, NO_PODS)], Removal.DRAINED
    ),
    "it was cordoned": ([(DAY, IN_ORDER, NO_PODS), (NOTHING, SPARE, NO_PODS)], Removal.DRAINED),
    "cordoned too long ago": ([(DAY + MINUTE, IN_ORDER, NO_PODS), (NOTHING, SPARE, NO_PODS)], Removal.CORDONED),
    "its pods went within a day": (
        [(DAY, SPARE, BUSY), (MINUTE, SPARE, NO_PODS), (NOTHING, SPARE, NO_PODS)], Removal.DRAINED
    ),
    "its pods went too long ago": (
        [(DAY + MINUTE, SPARE, BUSY), (DAY, SPARE, NO_PODS), (NOTHING, SPARE, NO_PODS)], Removal.CORDONED
    ),
    "a pod returned": ([(DAY, IN_ORDER, BUSY), (MINUTE, SPARE, NO_PODS), (NOTHING, SPARE, BUSY)], Removal.DRAINED),
    "a pod stays": (
        [(DAY + MINUTE, IN_ORDER, BUSY), (MINUTE, SPARE, NO_PODS), (NOTHING, SPARE, BUSY)], Removal.CORDONED
    ),
    "clock was set": ([(-MINUTE, IN_ORDER, BUSY), (NOTHING, SPARE, NO_PODS)], Removal.CORDONED),
    "another Node was in use": ([(MINUTE, ANOTHER, BUSY), (NOTHING, SPARE, NO_PODS)], Removal.CORDONED),
}  # fmt: skip


@pytest.mark.parametrize(("seen", "removal"), CASES.values(), ids=CASES)
def test_a_drain_is_seen_by_its_beginning(tmp_path: Path, seen: Seen, removal: Removal) -> None:
    """A spare, and a control plane that is always cordoned, have no pods to evict either."""
    one = registrar(tmp_path)
    for ago, the_node, pods in seen:
        one.read(the_node, pods, NOW - ago)
    assert removal_of(known(one, GONE, late=True)) is removal


def test_a_drain_that_was_seen_is_read_back(tmp_path: Path) -> None:
    seen = last_seen(removal=Removal.DRAINED, in_use=10 * MINUTE)
    (tmp_path / LAST_SEEN_FILE).write_text(dump_last_seen(seen))
    assert known(registrar(tmp_path), GONE).last == replace(seen, gone=NOW)


def test_a_node_with_the_taint_of_the_autoscaler_is_removed_in_a_scale_down(tmp_path: Path) -> None:
    tainted = worker(Taint(TO_BE_DELETED), Taint(DELETION_CANDIDATE))
    for unschedulable in (True, False):
        node = Known(replace(tainted, unschedulable=unschedulable))
        assert removal_of(known(registrar(tmp_path), node, Known(PODS))) is Removal.SCALE_DOWN
    candidate = Known(worker(Taint(DELETION_CANDIDATE)))
    assert removal_of(known(registrar(tmp_path), candidate)) is Removal.NONE


def test_a_node_may_be_drained_and_deleted_between_two_snapshots(tmp_path: Path) -> None:
    cases: tuple[tuple[Node | None, Reading[tuple[Pod, ...]], int, Removal], ...] = (
        (CORDONED, NO_PODS, 39, Removal.DRAINED),
        (CORDONED, Known(PODS), 39, Removal.CORDONED),
        (CORDONED, NO_PODS, 40, Removal.CORDONED),  # its pods may be deleted
        (CORDONED, NO_PODS, -1, Removal.CORDONED),  # the clock was set
        (replace(CORDONED, uid="another"), NO_PODS, 39, Removal.NONE),
        (None, NO_PODS, 39, Removal.NONE),
    )
    for latest, pods, after, removal in cases:
        one = registrar(tmp_path, latest=lambda: latest)  # noqa: B023
        known(one, IN_ORDER, Known(PODS))
        assert removal_of(one.read(GONE, pods, NOW + timedelta(seconds=after)).known()) is removal


def test_a_node_that_was_uncordoned_before_it_was_deleted_is_not_drained(tmp_path: Path) -> None:
    one = registrar(tmp_path, latest=lambda: replace(CORDONED, unschedulable=False))
    known(one, Known(CORDONED))
    last = known(one, GONE, late=True).last
    assert last is not None
    assert last.removal is Removal.NONE


def test_for_an_unhealthy_node_kubelet_name_and_cloud_are_read(tmp_path: Path) -> None:
    without_id: Reading[Node | None] = Known(worker())
    for node in (GONE, without_id):
        for cloud, name in (("external", "worker-9"), ("aws", "")):  # then the cloud provider gives the name
            found = known(registrar(tmp_path, Kubelet(hostname_override="Worker-9 ", cloud_provider=cloud)), node)
            assert (found.kubelet_name, found.cloud_provider) == (name, cloud)


def test_the_hostname_is_used_if_it_is_the_node_name(tmp_path: Path) -> None:
    # A pod that does not share the host's name sees its own in its place.
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    for host, name in (("worker-1\n", "worker-1"), ("Worker-1\n", "worker-1"), ("a-pod-x7\n", "")):
        (tmp_path / "proc/sys/kernel/hostname").write_text(host)
        assert known(registrar(tmp_path, Kubelet(v="2")), GONE).kubelet_name == name


def test_a_kubelet_that_ended_has_no_name(tmp_path: Path) -> None:
    assert known(registrar(tmp_path), GONE) == Registration()


def test_without_the_api_server_registration_is_disabled(tmp_path: Path) -> None:
    off = registrar(tmp_path).read(NotRequested("node", "--api=off"), NotRequested("pods", "--api=off"), NOW)
    assert off == NotRequested("registration", "--api=off")
