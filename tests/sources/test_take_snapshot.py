"""One look: each source once, in the order that is safe, and what fails is told and not guessed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from agent.cleanup.candidates import candidates
from agent.model.scene import State
from agent.model.snapshot import (
    SOURCES,
    Checkpoint,
    Container,
    NotAsked,
    Seen,
    Snapshot,
    Unread,
)
from agent.occupancy import judge
from agent.sources import Moment, take_snapshot
from tests import builders
from tests.builders import GONE, WORKER, daemons, node, refused_pod, reservation, sandbox
from tests.sources.told import Told

NOW = Moment(datetime(2026, 3, 26, 20, 0, tzinfo=UTC), timedelta(days=3))

NO_API = NotAsked("pods", "--api=off")


def ticking() -> Callable[[], float]:
    """A clock on which everything takes a second."""
    ticks: Iterator[int] = count()
    return lambda: float(next(ticks))


def look(sources: Told) -> Snapshot:
    return take_snapshot(sources, "worker-1", NOW, ticking())


ORPHAN = reservation("10.244.1.9", GONE)


def test_promises_are_read_before_owners_and_the_api_server_last() -> None:
    # On docker a sandbox exists before its address is reserved: in this order a race can orphan none.
    sources = Told(node(ORPHAN))
    look(sources)
    order = {source: place for place, source in enumerate(sources.asked)}
    assert order["reservations"] == 0
    assert order["reservations"] < order["containers"]
    assert order["containers"] < order["addresses"]
    assert max(order["pods"], order["node"]) > order["containers"]


def test_device_plugins_are_read_before_the_pods_that_were_refused_for_them() -> None:
    # A pod is refused for what the kubelet did not know: what it knows later would be an alibi that comes too late.
    sources = Told(node())
    look(sources)
    assert sources.asked.index("device_plugins") < sources.asked.index("pods")


def test_the_api_servers_clock_is_asked_for_when_it_has_answered() -> None:
    sources = Told(replace(node(), api_skew=timedelta(seconds=2)))
    assert look(sources).api_skew == timedelta(seconds=2)
    assert {"pods", "node"} <= set(sources.skew_asked_after)
    assert look(Told(node())).api_skew is None


def test_each_source_is_asked_once() -> None:
    sources = Told(node(ORPHAN))
    look(sources)
    assert sorted(sources.asked) == sorted(SOURCES)


def test_what_was_read_is_what_is_in_it() -> None:
    told = node(ORPHAN)
    snapshot = look(Told(told))
    assert snapshot.reservations == told.reservations
    assert snapshot.others() == told.others()
    assert (snapshot.node_name, snapshot.taken_at, snapshot.uptime) == ("worker-1", NOW.wall, NOW.uptime)
    assert snapshot.unread() == ()


def test_a_healthy_node_does_not_pay_for_namespaces() -> None:
    sources = Told(node())
    snapshot = look(sources)
    assert "addresses" not in sources.asked
    assert snapshot.addresses == NotAsked("addresses", "no reservation is known to be without an owner")


@pytest.mark.parametrize("ids", ["containers", "checkpoints"])
def test_an_owner_of_any_kind_is_an_owner(ids: str) -> None:
    owner = sandbox(GONE, "shop/old", "exited") if ids == "containers" else Checkpoint(GONE, "shop/old")
    sources = Told(node(ORPHAN, owner))
    look(sources)
    assert "addresses" not in sources.asked


def test_an_empty_file_has_no_owner() -> None:
    sources = Told(node(builders.empty_file("10.244.1.9")))
    look(sources)
    assert "addresses" in sources.asked


def test_when_docker_is_silent_nobody_is_known_to_be_without_owner() -> None:
    sources = Told(node(ORPHAN), broken="containers")
    snapshot = look(sources)
    assert "addresses" not in sources.asked
    assert snapshot.containers == Unread("containers", "it broke")


@pytest.mark.parametrize("source", ["checkpoints", "containers", "cni_results", "daemons", "addresses"])
def test_a_source_that_fails_is_unread_and_the_others_are_read(source: str) -> None:
    snapshot = look(Told(node(ORPHAN), broken=source))
    assert getattr(snapshot, source) == Unread(source, "it broke")
    others = {one.source for one in snapshot.unread()} - {source}
    assert others == ({"addresses"} if source == "daemons" else set())


def test_doubts_are_heeded() -> None:
    empty = look(Told(node(ORPHAN, containers=[])))
    assert isinstance(empty.containers, Unread)
    assert isinstance(look(Told(node(pods=[], node=[], containers=[]))).pods, Unread)
    assert look(Told(node(pods=[], node=[WORKER], containers=[]))).pods == Seen(())


MISSING = Unread("device_plugins", "/var/lib/kubelet/device-plugins does not exist")


def test_a_directory_for_devices_that_nobody_asks_for_may_be_missing() -> None:
    snapshot = look(Told(node(device_plugins=MISSING)))
    assert isinstance(snapshot.device_plugins, NotAsked)
    assert snapshot.unread() == ()
    assert look(Told(node(refused_pod("shop/gpu"), device_plugins=MISSING))).unread() == (
        Unread("device_plugins", f"{MISSING.why}, and shop/gpu has to do with devices: is it mounted?"),
    )


def test_device_plugins_have_no_say_in_addresses() -> None:
    closed = Unread("device_plugins", "Permission denied")
    snapshot = look(Told(node(ORPHAN, device_plugins=closed), broken="checkpoints"))
    assert snapshot.unread() == (Unread("checkpoints", "it broke"), closed)
    assert snapshot.unread_about_addresses() == (Unread("checkpoints", "it broke"),)


def test_without_the_api_server_the_others_are_read() -> None:
    snapshot = look(Told(node(ORPHAN, pods=NO_API, node=NotAsked("node", "--api=off"), daemons=[daemons()])))
    assert snapshot.pods == NO_API
    assert snapshot.unread() == ()


def test_an_unread_network_does_not_hide_another() -> None:
    snapshot = look(Told(node(ORPHAN, unread_networks=["cbr0"])))
    assert [one.source for one in snapshot.unread()] == ["reservations"]
    assert isinstance(snapshot.addresses, Seen)


def test_the_time_of_each_reading_is_kept() -> None:
    snapshot = look(Told(node(ORPHAN)))
    assert sorted(timing.source for timing in snapshot.timings) == sorted(SOURCES)
    assert {timing.seconds for timing in snapshot.timings} == {1.0}


def test_a_bug_in_a_source_is_loud() -> None:
    class Broken(Told):
        def containers(self) -> tuple[Container, ...]:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        look(Broken(node()))


def test_on_a_node_of_another_runtime_no_address_is_called_leaked_whatever_a_docker_beside_it_lists() -> None:
    elsewhere = replace(WORKER, runtime="containerd://1.6.20")
    snapshot = look(Told(node(ORPHAN, containers=[], checkpoints=[], addresses=[], pods=[], node=[elsewhere])))
    assert isinstance(snapshot.containers, NotAsked)
    scene = judge(snapshot, timedelta(0))
    assert {one.state for one in scene.occupancies} == {State.UNKNOWN}
    assert snapshot.unread() == ()
    assert candidates(scene) == ()
