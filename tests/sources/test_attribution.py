"""Whose a directory is that no setting names."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest

from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import (
    CniResult,
    Container,
    Known,
    LeftOver,
    NetworkStore,
    NotRequested,
    Reservation,
    Snapshot,
    Unavailable,
    UnrecognizedEntry,
)
from agent.sources.attribution import attributed, cleanable
from tests.builders import GONE, NOW, UPTIME, WEB_ID, cni_result, node, processes, reservation

CBR0: Final = RuntimeNetwork("cbr0", ("flannel", "portmap"))
SILENT: Final = NotRequested("networks", "docker does not name its networks")
OF_WEB: Final = cni_result(WEB_ID, "shop/web", network="storage")
YEAR: Final = timedelta(days=365)


def store(*entries: Reservation, name: str = "storage", **more: Any) -> NetworkStore:
    return NetworkStore(name, Known(entries), data_dir="/var/lib/cni/networks", discovered=True, **more)


def web(name: str = "storage", **more: Any) -> Reservation:
    return reservation("10.9.0.2", WEB_ID, network=name, **more)


def lost(name: str = "storage", **more: Any) -> Reservation:
    return reservation("10.9.0.3", GONE, network=name, **more)


def judge(of: NetworkStore, *results: CniResult, **readings: Any) -> NetworkStore:
    usual: dict[str, Any] = {"networks": SILENT, "cni_results": results}
    return attributed(of, node(**(usual | readings)))


def why(of: NetworkStore) -> str:
    assert isinstance(of.reading, NotRequested), of
    return of.reading.why


# In use


@pytest.mark.parametrize("ipam", ["host-local", ""])
def test_a_network_that_the_runtime_names_is_in_use(ipam: str) -> None:
    for entries in ((), (lost("cbr0"),)):
        one = store(*entries, name="cbr0")
        assert judge(one, networks=[replace(CBR0, ipam=ipam)]) == one


@pytest.mark.parametrize("networks", [SILENT, [CBR0], Unavailable("networks", "no answer")])
def test_the_network_of_a_running_pod_is_in_use_whatever_the_runtime_names(networks: Any) -> None:
    one = store(web(ifname="net1"), lost(ifname="net1"))
    assert judge(one, replace(OF_WEB, ifname="net1"), networks=networks) == one


def test_a_network_is_in_use_whose_files_were_deleted_below_its_pods() -> None:
    assert judge(store(), OF_WEB) == store()


def test_on_a_drained_node_the_newest_result_tells() -> None:
    leaked = cni_result(GONE, "shop/cart", network="storage")
    assert judge(store(lost()), leaked, containers=[], pods=[]) == store(lost())
    newer = cni_result("8" * 64, "shop/x", network="other", age=timedelta(0))
    assert isinstance(judge(store(lost()), leaked, newer, containers=[], pods=[]).reading, NotRequested)


# Another program's


@pytest.mark.parametrize("name", ["podman", "cni-podman1"])
def test_a_directory_of_podman_is_its_own(name: str) -> None:
    found = judge(store(lost(name), web(name), name=name), replace(OF_WEB, network=name))
    assert (why(found), found.left_over) == ("its addresses are those of podman", None)


@pytest.mark.parametrize("program", ["nerdctl", "BuildKit", "Nomad"])
def test_a_directory_with_ids_of_another_program_is_its_own(program: str) -> None:
    entry = UnrecognizedEntry("storage", "10.9.0.9", "no id", blocks=True, program=program)
    found = judge(store(web(), unrecognized=(entry,)), OF_WEB)
    assert (why(found), found.unrecognized) == (f"its addresses are those of {program}", ())


def test_an_id_that_libcni_knows_without_a_pod_is_of_another_program() -> None:
    """podman sets K8S_POD_NAME, and no namespace."""
    found = judge(store(web(), lost()), OF_WEB, cni_result(GONE, "", network="storage"))
    assert why(found) == "libcni's cache has IDs of this network that are not those of pods"


def test_a_directory_with_the_id_of_a_container_of_another_client_is_not_left_over() -> None:
    other = Container(GONE, "in another namespace of containerd", 0, "", "", sandbox=True)
    found = judge(store(lost(age=YEAR)), networks=[CBR0], containers=[other])
    assert (why(found), found.left_over) == ("the runtime gives pods addresses from network cbr0", None)


# Unknown


@pytest.mark.parametrize("source", ["networks", "containers", "cni_results"])
def test_what_an_unavailable_source_could_tell_is_unavailable(source: str) -> None:
    found = judge(store(lost(age=YEAR)), **{source: Unavailable(source, "no answer")})
    assert found.reading == Unavailable(
        "reservations", f"it is unknown whether pods use network storage: {source}: no answer"
    )
    assert found.left_over is None


def test_a_directory_that_cannot_be_read_stays_unavailable() -> None:
    one = replace(store(), reading=Unavailable("reservations", "permission denied"))
    assert judge(one) == one


# Not in use


def test_a_network_of_another_ipam_plugin_is_not_in_use() -> None:
    calico = RuntimeNetwork("storage", ("calico",), "calico-ipam")
    found = judge(store(lost(age=YEAR)), networks=[calico], processes=[processes()])
    assert why(found) == "the runtime's network storage uses calico-ipam"
    assert found.left_over


def test_the_directory_of_an_earlier_setup_is_left_over() -> None:
    old = cni_result(GONE, "shop/old", network="storage")
    found = judge(store(lost(age=YEAR), reservation("10.9.0.9", "8" * 64, age=YEAR / 2)), old, networks=[CBR0])
    assert why(found) == "the runtime gives pods addresses from network cbr0"
    oldest, newest = (int((NOW - age).timestamp()) * 10**9 for age in (YEAR, YEAR / 2))
    assert found.left_over == LeftOver("/var/lib/cni/networks/storage", 2, oldest, newest, pods=1)


@pytest.mark.parametrize("age", [timedelta(0), timedelta(hours=1)])
def test_a_directory_that_is_written_is_not_left_over(age: timedelta) -> None:
    assert judge(store(lost(age=YEAR), reservation("10.9.0.9", "8" * 64, age=age)), networks=[CBR0]).left_over is None


def test_without_a_pod_the_start_of_the_node_tells() -> None:
    quiet: dict[str, Any] = {"networks": [CBR0], "containers": [], "pods": []}
    assert judge(store(lost(age=UPTIME * 2)), **quiet).left_over
    assert judge(store(lost(age=UPTIME / 2)), **quiet).left_over is None
    assert judge(store(), **quiet).left_over is None


# Missing


MISSING: Final = replace(store(name="cbr0"), reading=Unavailable("reservations", "x does not exist: y"), absent=True)


def test_host_local_makes_the_directory_of_the_runtime_for_the_first_pod() -> None:
    quiet: dict[str, Any] = {"containers": [], "pods": []}
    for ipam in ("host-local", ""):
        assert judge(MISSING, networks=[replace(CBR0, ipam=ipam)], **quiet).reading == Known(())


def test_a_network_that_no_pod_has_yet_has_no_directory_yet() -> None:
    host_local = [replace(CBR0, ipam="host-local")]
    assert judge(MISSING, OF_WEB, networks=host_local).reading == Known(())
    assert judge(replace(MISSING, absent=False), OF_WEB, networks=host_local).reading == MISSING.reading
    assert judge(MISSING, replace(OF_WEB, network="cbr0"), networks=host_local) == MISSING


def test_a_missing_directory_of_running_pods_is_unavailable_where_host_local_is_certain() -> None:
    assert judge(MISSING, networks=[replace(CBR0, ipam="host-local")]) == MISSING
    found = judge(MISSING, networks=[replace(CBR0, plugins=("cilium-cni",))])
    assert why(found) == "the runtime's network cbr0 (cilium-cni) has no directory of host-local"


# What cleanup may call the pods'


def allowed(*stores: NetworkStore, **readings: Any) -> frozenset[str]:
    usual: dict[str, Any] = {"networks": SILENT, "cni_results": [OF_WEB]}
    snapshot: Snapshot = replace(node(**(usual | readings)), reservations=stores)
    return cleanable(snapshot)


def test_auto_cleans_what_the_runtime_names_and_nothing_else() -> None:
    found = (store(web()), store(name="cbr0"), store(name="kubenet"))
    assert allowed(*found, networks=[CBR0, RuntimeNetwork("x", ("calico",), "calico-ipam")]) == {"cbr0"}
    assert allowed(*found, networks=[]) == frozenset()
    assert allowed(*found, networks=Unavailable("networks", "no answer")) == frozenset()


def test_without_the_word_of_a_runtime_auto_cleans_where_pods_have_their_eth0() -> None:
    unused = replace(store(name="old"), reading=NotRequested("reservations", "not in use"))
    assert allowed(store(web()), store(name="kubenet"), store(lost("x"), name="x"), unused) == {"storage", "kubenet"}
    secondary = replace(OF_WEB, ifname="net1")
    assert allowed(store(web(ifname="net1")), cni_results=[secondary]) == frozenset()


def test_a_directory_from_which_no_pod_has_an_address_is_not_in_use() -> None:
    assert why(judge(store(lost()))) == "no running pod of this node has an address from it"
