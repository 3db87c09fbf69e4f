"""What a sync leaves to the next: what cannot be read stays as it was."""

from dataclasses import replace
from datetime import timedelta

from agent.checks.addresses.classify import classify
from agent.checks.kubelet_runtime import kubelet_runtime
from agent.checks.memory import advance
from agent.model.clocks import Moment
from agent.model.index import SnapshotIndex
from agent.model.memory import NO_MEMORY, Memory, ReservationMemory
from agent.model.snapshot import Known, PortMapping, Snapshot
from tests.builders import GRACE, NOW, UPTIME, WEB_ID, node, pod, reservation, without

HTTP = (PortMapping(8080, "tcp"),)
GONE = reservation("10.244.1.9")
"""Its container is gone, and nothing on the node names its pod."""


def after(before: Memory, snapshot: Snapshot, *, clock_stepped: bool = False) -> Memory:
    index = SnapshotIndex(snapshot)
    assessment = classify(index, kubelet_runtime(snapshot), GRACE, before)
    return advance(before, assessment, clock_stepped=clock_stepped)


def test_what_an_owner_showed_is_known_once_the_owner_is_gone() -> None:
    web = replace(pod("shop/web", uid="u-web"), host_ports=HTTP, created=NOW - timedelta(days=1))
    first = after(NO_MEMORY, replace(node(), pods=Known((web,))))
    (file,) = (file for file in first.reservations if file.container_id == WEB_ID)
    owned = first.get(file)
    assert (owned.pod, owned.owned_at) == ("shop/web", NOW)
    assert first.get(GONE) == ReservationMemory()

    containers = tuple(one for one in node().containers.known() if one.id != WEB_ID)
    later = replace(
        node(later=timedelta(minutes=1)),
        containers=Known(containers),
        checkpoints=Known(()),
        pods=Known(()),
    )
    second = after(first, later)
    assert second.get(file).owned_at == NOW, "that is when it was last seen"
    assert second.get(file).pod == "shop/web"
    assert second.get(file).host_ports == owned.host_ports


def test_the_reservations_of_a_network_that_cannot_be_read_stay_as_they_were() -> None:
    first = after(NO_MEMORY, node(GONE))
    unread = without(node(GONE, later=timedelta(minutes=1)), "reservations")
    second = after(first, unread)
    assert second.reservations == first.reservations
    assert second.last_taken == Moment(NOW + timedelta(minutes=1), UPTIME + timedelta(minutes=1))
    assert after(second, node()).get(GONE) == ReservationMemory(), "its file is gone"


def test_a_time_before_the_clock_was_set_is_forgotten_and_the_pod_is_not() -> None:
    first = after(NO_MEMORY, node())
    (file,) = (file for file in first.reservations if file.container_id == WEB_ID)
    hour = timedelta(hours=1)
    lost = replace(node(later=timedelta(minutes=1), clock_set_by=hour), containers=Known(()))
    lost = replace(lost, checkpoints=Known(()), pods=Known(()))
    second = after(first, lost, clock_stepped=True)
    assert (second.get(file).owned_at, second.get(file).pod) == (None, "shop/web")


def test_a_time_before_the_clock_was_set_is_forgotten_of_a_network_that_cannot_be_read() -> None:
    first = after(NO_MEMORY, node())
    (file,) = (file for file in first.reservations if file.container_id == WEB_ID)
    set_back = node(later=timedelta(minutes=1), clock_set_by=-timedelta(hours=1))
    second = after(first, without(set_back, "reservations"), clock_stepped=True)
    assert (second.get(file).owned_at, second.get(file).pod) == (None, "shop/web")


def test_names_of_another_process_are_kept() -> None:
    named = Memory(pods_of_other_process={GONE.container_id: "shop/cart-0"})
    first = after(named, without(node(), "reservations"))
    assert after(first, node(GONE)).get(GONE).pod == "shop/cart-0"
