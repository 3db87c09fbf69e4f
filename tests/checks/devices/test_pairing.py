"""Which socket is that of a resource's plugin."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from agent.model.devices import TransitionKind
from agent.model.snapshot import Snapshot
from tests.builders import KVM, KVM_SOCKET, plugin_socket, registered, transition
from tests.checks.reported import following, resources_of, seconds, with_plugins

A, B = "example.org/alpha", "example.com/beta"
STARTED, APPEARED = TransitionKind.KUBELET_STARTED, TransitionKind.SOCKET_APPEARED
GONE, LOST = TransitionKind.SOCKET_GONE, TransitionKind.LOST
REGISTERED = TransitionKind.REGISTERED


def sockets_of(snapshot: Snapshot) -> dict[str, Any]:
    return {name: state["socket"] for name, state in resources_of(snapshot).items()}


def with_sockets(resources: Iterable[str], *names: str, history: Any = ()) -> Snapshot:
    listed = (registered(resource, "d0") for resource in resources)
    sockets = map(plugin_socket, names)
    return with_plugins(*history, *listed, *sockets, kubelet=9000, written=7190)


def test_the_names_that_plugins_give_to_their_sockets() -> None:
    squat = "gdp-c3F1YXQuYWkvdHR5-1774555200.sock"
    for resource, socket in (
        (KVM, KVM_SOCKET),
        ("nvidia.com/gpu", "nvidia-gpu.sock"),
        ("nvidia.com/mig-1g.5gb", "nvidia-mig-1g.5gb.sock"),
        ("nvidia.com/gpu", "nvidiaGPU-1774555200.sock"),
        ("volcano.sh/vgpu-number", "nvidia-vgpu-number.sock"),
        ("intel.com/qat", "kubevirt-intel.com-qat.sock"),
        ("amd.com/gpu", "amd.com_gpu"),
        ("gpu.intel.com/i915", "gpu.intel.com-i915.sock"),
        ("squat.ai/tty", squat),
        ("akri.sh/camera-8120fe", "camera-8120fe-1774555200.sock"),
        ("openshift.io/sriov_net_a", "openshift.io_sriov_net_a.sock"),
        ("rdma/hca_shared_devices_a", "hca_shared_devices_a.sock"),
        ("habana.ai/gaudi", "gaudi_habanalabs.sock"),
        ("huawei.com/Ascend910", "Ascend910.sock"),
    ):
        snapshot = with_sockets((resource, A), socket, "x.sock", "y.sock")
        assert sockets_of(snapshot) == {resource: socket, A: None}


def test_names_that_fit_twice_decide_nothing() -> None:
    gpus = ("nvidia.com/gpu", "amd.com/gpu")
    assert sockets_of(with_sockets(gpus, "gpu.sock", "x.sock")) == dict.fromkeys(sorted(gpus))
    # The whole name counts for more.
    assert sockets_of(with_sockets(gpus, "amd.com_gpu", "nvidia-gpu.sock", "gpu.sock")) == {
        "amd.com/gpu": "amd.com_gpu",
        "nvidia.com/gpu": "nvidia-gpu.sock",
    }
    other = with_sockets(("squat.ai/tty", A), "gdp-c3F1YXQuYWkvYXVkaW8-1774555200.sock", "x.sock")
    assert sockets_of(other)["squat.ai/tty"] is None


def test_what_is_left_is_paired_if_it_is_one_of_each() -> None:
    assert sockets_of(with_sockets([A], "x.sock")) == {A: "x.sock"}
    assert sockets_of(with_sockets([A, KVM], "x.sock", KVM_SOCKET)) == {
        A: "x.sock",
        KVM: KVM_SOCKET,
    }
    for resources, names in (((A, B), ("x.sock",)), ((A,), ("x.sock", "y.sock"))):
        assert set(sockets_of(with_sockets(resources, *names)).values()) == {None}
    # A socket that the kubelet is not connected to is not that of a resource with devices.
    there = (plugin_socket("x.sock", connected=False), plugin_socket())
    listed = (registered(A, "d0"), registered(KVM, "d0"))
    unconnected = with_plugins(*there, *listed, kubelet=9000, written=7190)
    assert sockets_of(unconnected)[A] is None


def test_a_plugin_that_restarts_shows_which_socket_is_its_own() -> None:
    """Its socket disappeared and was bound again 35 s later, as the resource was lost and registered."""
    start = (transition(STARTED, ago=seconds(9000)),)
    restart = (
        transition(GONE, socket="x.sock", ago=seconds(615)),
        transition(LOST, A, ago=seconds(605)),
        transition(APPEARED, socket="x.sock", ago=seconds(570)),
        transition(REGISTERED, A, ago=seconds(569.8)),
    )
    expected = {A: "x.sock", B: "y.sock"}
    names = ("x.sock", "y.sock")
    assert sockets_of(with_sockets((A, B), *names, history=(*start, *restart))) == expected
    # A single coincidence does not outweigh a name, and two do.
    for history, socket in ((restart[2:], "example.org-alpha.sock"), (restart, "x.sock")):
        named = with_sockets((A, B), "x.sock", "example.org-alpha.sock", history=(*start, *history))
        assert sockets_of(named)[A] == socket
    # Two plugins that restart together show nothing, and a start of the kubelet neither.
    both = (
        *restart,
        transition(GONE, socket="y.sock", ago=seconds(615)),
        transition(LOST, B, ago=seconds(605)),
        transition(APPEARED, socket="y.sock", ago=seconds(570)),
        transition(REGISTERED, B, ago=seconds(569.5)),
    )
    unknown = dict.fromkeys(sorted((A, B)))
    assert sockets_of(with_sockets((A, B), *names, history=(*start, *both))) == unknown
    just_started = (transition(STARTED, ago=seconds(580)), *restart[2:])
    assert sockets_of(with_sockets((A, B), *names, history=just_started)) == unknown


def test_a_socket_that_has_a_new_name_at_each_start_is_the_same_plugins() -> None:
    old, new = (f"gdp-c3F1YXQuYWkvdHR5-{at}.sock" for at in (1774555200, 1774558800))
    tty = "squat.ai/tty"

    def snapshot_of(name: str | None, at: float, written: float) -> Snapshot:
        sockets = [] if name is None else [plugin_socket(name, ago=seconds(-at + 1))]
        there = (*sockets, plugin_socket(), registered(tty, "t0"), registered(KVM, "d0"))
        return with_plugins(*there, kubelet=9000, written=written, later=seconds(at))

    before = snapshot_of(old, 0, 0.9)
    away = following(before, snapshot_of(None, 15, 0.9))
    back = following(away, snapshot_of(new, 30, -29.2))
    assert [sockets_of(snapshot)[tty] for snapshot in (before, away, back)] == [old, old, new]
    assert resources_of(back)[tty]["connected"] is True


def test_sockets_of_the_registry_are_paired_only_by_name_or_connection() -> None:
    vf = "openshift.io/vf"

    def snapshot_of(*sockets: Any) -> Snapshot:
        listed = (registered(KVM, "d0"), registered(vf, "v0"))
        return with_plugins(*sockets, *listed, kubelet=9000, written=7190)

    storage = replace(plugin_socket("disk.csi.sock", connected=False), registry=True)
    plugin = replace(plugin_socket("pool.sock"), registry=True)
    assert sockets_of(snapshot_of(plugin_socket(), storage))[vf] is None
    assert sockets_of(snapshot_of(plugin_socket(), storage, plugin))[vf] == "pool.sock"
