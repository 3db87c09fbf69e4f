"""Registration data on the node: kept across snapshots, stored on disk, and read from the kubelet's flags."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent.model.registration import (
    DELETION_CANDIDATE,
    TO_BE_DELETED,
    LastSeen,
    Registration,
    Removal,
    Taint,
)
from agent.model.setting_values import Expected
from agent.model.snapshot import Known, Node, NotRequested, Pod, Reading, Unavailable
from agent.model.state_files import LAST_SEEN_FILE, dump_last_seen
from agent.sources.host.registration import MAX_LAST_SEEN_BYTES, RegistrationTracker
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


@pytest.mark.parametrize("content", ["damaged", "{}", "x" * (MAX_LAST_SEEN_BYTES + 1)])
def test_an_unreadable_record_is_ignored_and_reported(tmp_path: Path, content: str) -> None:
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


@pytest.mark.parametrize(
    ("pods", "removal"),
    [
        (Known(()), Removal.DRAINED),
        (Known((DAEMON, STATIC)), Removal.DRAINED),
        (Known((pod("shop/once", phase="Succeeded"), pod("shop/evicted", deleting=True))), Removal.DRAINED),
        (Known((DAEMON, pod("shop/bare"))), Removal.CORDONED),
        (Known((replace(pod("shop/web"), controller="ReplicaSet/web"),)), Removal.CORDONED),
        (Unavailable("pods", "timed out"), Removal.CORDONED),
    ],
    ids=["no pod", "daemons", "over", "a bare pod", "a workload", "not known"],
)
def test_a_cordoned_node_without_pods_to_evict_is_drained(
    tmp_path: Path, pods: Reading[tuple[Pod, ...]], removal: Removal
) -> None:
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


@pytest.mark.parametrize(
    ("seen", "removal"),
    [
        ([(10 * DAY, SPARE, NO_PODS), (NOTHING, SPARE, NO_PODS)], Removal.CORDONED),
        ([(2 * MINUTE, SPARE, NOT_KNOWN), (NOTHING, SPARE, NO_PODS)], Removal.CORDONED),
        ([(2 * MINUTE, SPARE, BUSY), (MINUTE, SPARE, NOT_KNOWN), (NOTHING, SPARE, NO_PODS)], Removal.DRAINED),
        ([(DAY, IN_ORDER, NO_PODS), (NOTHING, SPARE, NO_PODS)], Removal.DRAINED),
        ([(DAY + MINUTE, IN_ORDER, NO_PODS), (NOTHING, SPARE, NO_PODS)], Removal.CORDONED),
        ([(DAY, SPARE, BUSY), (MINUTE, SPARE, NO_PODS), (NOTHING, SPARE, NO_PODS)], Removal.DRAINED),
        ([(DAY + MINUTE, SPARE, BUSY), (DAY, SPARE, NO_PODS), (NOTHING, SPARE, NO_PODS)], Removal.CORDONED),
        ([(DAY, IN_ORDER, BUSY), (MINUTE, SPARE, NO_PODS), (NOTHING, SPARE, BUSY)], Removal.DRAINED),
        ([(DAY + MINUTE, IN_ORDER, BUSY), (MINUTE, SPARE, NO_PODS), (NOTHING, SPARE, BUSY)], Removal.CORDONED),
        ([(-MINUTE, IN_ORDER, BUSY), (NOTHING, SPARE, NO_PODS)], Removal.CORDONED),
        ([(MINUTE, Known(replace(CORDONED, uid="another", unschedulable=False)), BUSY), (NOTHING, SPARE, NO_PODS)],
         Removal.CORDONED),
    ],
    ids=[
        "always cordoned", "its pods were not known", "its pods went", "it was cordoned", "cordoned too long ago",
        "its pods went within a day", "its pods went too long ago", "a pod returned", "a pod stays", "clock was set",
        "another Node was in use",
    ],
)  # fmt: skip
def test_a_drain_is_seen_by_its_beginning(
    tmp_path: Path, seen: list[tuple[timedelta, Reading[Node | None], Reading[tuple[Pod, ...]]]], removal: Removal
) -> None:
    """A spare, and a control plane that is always cordoned, have no pods to evict either."""
    one = registrar(tmp_path)
    for ago, the_node, pods in seen:
        one.read(the_node, pods, NOW - ago)
    last = known(one, GONE, late=True).last
    assert last is not None
    assert last.removal is removal


@pytest.mark.parametrize("gone", [None, NOTHING], ids=["there", "gone"])
def test_a_drain_in_a_record_of_the_version_before_is_not_proven(tmp_path: Path, gone: timedelta | None) -> None:
    """It counted every cordoned node without such pods as drained."""
    (tmp_path / LAST_SEEN_FILE).write_text(dump_last_seen(last_seen(removal=Removal.DRAINED, gone=gone)))
    assert known(registrar(tmp_path), GONE).last == last_seen(removal=Removal.CORDONED, gone=NOTHING)


def test_a_node_in_use_in_a_record_of_the_version_before_may_be_drained_since(tmp_path: Path) -> None:
    (tmp_path / LAST_SEEN_FILE).write_text(dump_last_seen(last_seen()))
    last = known(registrar(tmp_path), SPARE).last
    assert last is not None
    assert last.removal is Removal.DRAINED


def test_a_drain_that_was_seen_is_read_back(tmp_path: Path) -> None:
    seen = last_seen(removal=Removal.DRAINED, in_use=10 * MINUTE)
    (tmp_path / LAST_SEEN_FILE).write_text(dump_last_seen(seen))
    assert known(registrar(tmp_path), GONE).last == replace(seen, gone=NOW)


@pytest.mark.parametrize("unschedulable", [True, False])
def test_a_node_with_the_taint_of_the_autoscaler_is_removed_in_a_scale_down(
    tmp_path: Path, unschedulable: bool
) -> None:
    tainted = worker(Taint(TO_BE_DELETED), Taint(DELETION_CANDIDATE))
    last = known(registrar(tmp_path), Known(replace(tainted, unschedulable=unschedulable)), Known(PODS)).last
    assert last is not None
    assert last.removal is Removal.SCALE_DOWN
    candidate = known(registrar(tmp_path), Known(worker(Taint(DELETION_CANDIDATE)))).last
    assert candidate is not None
    assert candidate.removal is Removal.NONE


@pytest.mark.parametrize(
    ("latest", "pods", "after", "removal"),
    [
        (CORDONED, NO_PODS, 39, Removal.DRAINED),
        (CORDONED, Known(PODS), 39, Removal.CORDONED),
        (CORDONED, NO_PODS, 40, Removal.CORDONED),
        (CORDONED, NO_PODS, -1, Removal.CORDONED),
        (replace(CORDONED, uid="another"), NO_PODS, 39, Removal.NONE),
        (None, NO_PODS, 39, Removal.NONE),
    ],
    ids=["drained", "cordoned", "its pods may be deleted", "the clock was set", "another Node", "not sent"],
)
def test_a_node_may_be_drained_and_deleted_between_two_snapshots(
    tmp_path: Path, latest: Node | None, pods: Reading[tuple[Pod, ...]], after: int, removal: Removal
) -> None:
    one = registrar(tmp_path, latest=lambda: latest)
    known(one, IN_ORDER, Known(PODS))
    last = one.read(GONE, pods, NOW + timedelta(seconds=after)).known().last
    assert last is not None
    assert last.removal is removal


def test_a_node_that_was_uncordoned_before_it_was_deleted_is_not_drained(tmp_path: Path) -> None:
    one = registrar(tmp_path, latest=lambda: replace(CORDONED, unschedulable=False))
    known(one, Known(CORDONED))
    last = known(one, GONE, late=True).last
    assert last is not None
    assert last.removal is Removal.NONE


@pytest.mark.parametrize("node", [GONE, Known(worker())], ids=["gone", "without a provider ID"])
def test_for_an_unhealthy_node_kubelet_name_and_cloud_are_read(tmp_path: Path, node: Reading[Node | None]) -> None:
    read_registration = known(
        registrar(tmp_path, Kubelet(hostname_override="Worker-9 ", cloud_provider="external")), node
    )
    assert (read_registration.kubelet_name, read_registration.cloud_provider) == ("worker-9", "external")


def test_a_node_name_from_the_cloud_provider_is_unknown(tmp_path: Path) -> None:
    read_registration = known(registrar(tmp_path, Kubelet(hostname_override="worker-9", cloud_provider="aws")), GONE)
    assert (read_registration.kubelet_name, read_registration.cloud_provider) == ("", "aws")


@pytest.mark.parametrize(("host", "name"), [("worker-1\n", "worker-1"), ("Worker-1\n", "worker-1"), ("a-pod-x7\n", "")])
def test_the_hostname_is_used_if_it_is_the_node_name(tmp_path: Path, host: str, name: str) -> None:
    # A pod that does not share the host's name sees its own in its place.
    place = tmp_path / "proc/sys/kernel"
    place.mkdir(parents=True)
    (place / "hostname").write_text(host)
    assert known(registrar(tmp_path, Kubelet(v="2")), GONE).kubelet_name == name


def test_a_kubelet_that_ended_has_no_name(tmp_path: Path) -> None:
    assert known(registrar(tmp_path), GONE) == Registration()


def test_without_the_api_server_registration_is_disabled(tmp_path: Path) -> None:
    off = registrar(tmp_path).read(NotRequested("node", "--api=off"), NotRequested("pods", "--api=off"), NOW)
    assert off == NotRequested("registration", "--api=off")
