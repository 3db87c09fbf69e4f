"""Whose pods run here: what the kubelet names, what its Node says, and what was asked."""

from dataclasses import replace
from datetime import timedelta

from agent.checks.kubelet_runtime import kubelet_runtime
from agent.checks.readings import crosscheck
from agent.model.assessment import State
from agent.model.index import SnapshotIndex
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER, ContainerRuntime
from agent.model.snapshot import Checkpoint, Known, NotRequested, Reading, Snapshot, Unavailable
from tests.builders import (
    NOW,
    UPTIME,
    WORKER,
    assessment,
    node,
    processes,
    reservation,
    state,
    unavailable,
)

SOCKET = "/run/containerd/containerd.sock"
OF_DOCKER = ContainerRuntime(DOCKER)
OF_CONTAINERD = ContainerRuntime(CONTAINERD, "1.7.24", SOCKET)
OF_K3S = ContainerRuntime(CONTAINERD, "v1.7.23-k3s2", "/run/k3s/containerd/containerd.sock")
CHOSEN = replace(OF_K3S, chosen=True)
OF_CRI_O = ContainerRuntime(CRI_O, "1.28.11", "/run/crio/crio.sock")
OLD = "10.244.1.9"


def with_runtimes(
    snapshot: Snapshot, *asked: ContainerRuntime, named: str | None = None, reported: str = ""
) -> Snapshot:
    """Say what was asked, what the kubelet names, and what its Node reports."""
    return replace(
        snapshot,
        runtimes=Known(asked),
        processes=Known(replace(processes(), runtime=named, containerd=NOW - UPTIME)),
        node=Known(replace(WORKER, runtime=reported)),
    )


def test_the_runtime_of_the_kubelet_is_the_one_that_is_named_and_was_asked() -> None:
    cases: list[tuple[list[ContainerRuntime], str | None, str, list[ContainerRuntime]]] = [
        ([OF_CONTAINERD, OF_DOCKER], DOCKER, "", [OF_DOCKER]),
        ([OF_CONTAINERD, OF_DOCKER], f"unix://{SOCKET}", "", [OF_CONTAINERD]),
        ([OF_CRI_O, OF_CONTAINERD], None, "cri-o://1.28.11", [OF_CRI_O]),
        ([OF_CONTAINERD, OF_DOCKER], "", "docker://20.10.24", [OF_DOCKER]),
        ([OF_CONTAINERD], None, "", []),
        ([OF_DOCKER], f"unix://{SOCKET}", "", []),
        ([OF_DOCKER], None, "containerd://1.7.24", []),
        ([OF_K3S, OF_CONTAINERD, OF_DOCKER], "", "containerd://1.7.24", [OF_CONTAINERD]),
        ([OF_K3S, OF_CONTAINERD, OF_DOCKER], "", "containerd://1.7.23-k3s2", [OF_K3S]),
        ([OF_K3S], None, "containerd://1.7.24", []),
        ([OF_K3S], None, "containerd://", [OF_K3S]),
        ([CHOSEN, OF_DOCKER], None, "", [CHOSEN]),
        ([CHOSEN, OF_DOCKER], DOCKER, "", [OF_DOCKER]),
        ([CHOSEN, OF_DOCKER], None, "docker://20.10.24", [OF_DOCKER]),
        ([CHOSEN], None, "cri-o://1.28.11", []),
        ([CHOSEN], "/run/mine.sock", "", []),
        ([OF_CONTAINERD], f"/host{SOCKET}", "", []),
        ([replace(OF_K3S, version="")], None, "containerd://1.7.24", [replace(OF_K3S, version="")]),
        ([OF_DOCKER, OF_CONTAINERD], DOCKER, "containerd://1.7.24", []),
    ]
    for asked, named, reported, expected in cases:
        snapshot = with_runtimes(node(), *asked, named=named, reported=reported)
        assert kubelet_runtime(snapshot).used == tuple(expected), (asked, named, reported)
    # Every spelling of an endpoint is one path.
    for named in (
        "/run/crio/crio.sock", "/var/run/crio/crio.sock", "unix:/run/crio/crio.sock", "unix:///run/crio/crio.sock",
        "unix:///var/run/crio/crio.sock", "unix:////run/crio/crio.sock", "unix:///run//crio/crio.sock",
        "unix:///var//run/./crio/crio.sock", "//run/crio/../crio/crio.sock",
    ):  # fmt: skip
        assert kubelet_runtime(with_runtimes(node(), OF_CRI_O, named=named)).used == (OF_CRI_O,)
    for named in ("x", "unix:x", "unix://x", "tcp://127.0.0.1:1", "npipe:////./pipe/x"):
        assert kubelet_runtime(with_runtimes(node(), OF_CRI_O, named=named)).not_asked == named
    # A recording that does not say what was asked is one of docker.
    old = replace(node(), runtimes=NotRequested("runtimes", "an earlier version did not read it"))
    assert kubelet_runtime(old).asked == (OF_DOCKER,)
    assert kubelet_runtime(replace(old, runtimes=unavailable("runtimes"))).asked == ()


def test_runtimes_that_may_list_late_are_known_and_have_a_longer_grace_period() -> None:
    mine, early = (
        ContainerRuntime("mine", "3.0.0", "/run/mine.sock"),
        replace(OF_CONTAINERD, version="1.6.8"),
    )
    for runtimes, unordered in (
        ([OF_DOCKER], []),
        ([OF_CONTAINERD], []),
        ([early], ["containerd 1.6.8"]),
        ([replace(OF_CONTAINERD, version="")], ["containerd"]),
        ([OF_CONTAINERD, mine], ["mine 3.0.0"]),
    ):
        assert [
            str(asked)
            for asked in kubelet_runtime(with_runtimes(node(), *runtimes)).without_record_order
        ] == unordered
    beside = with_runtimes(node(), OF_DOCKER, early, named=DOCKER)
    assert kubelet_runtime(beside).without_record_order == (), "only that of the kubelet matters"
    # An unordered runtime has a longer grace period.
    for version, young in (("1.6.8", State.CANDIDATE), ("1.6.9", State.LEAKED)):
        ordered = replace(OF_CONTAINERD, version=version)
        for age, expected in (
            (timedelta(minutes=14, seconds=59), young),
            (timedelta(minutes=15), State.LEAKED),
        ):
            snapshot = with_runtimes(
                node(reservation(OLD, age=age)), ordered, named=f"unix://{SOCKET}"
            )
            assert state(snapshot, OLD) is expected


def test_a_list_without_a_sandbox_needs_evidence_that_the_runtime_is_that_of_the_kubelet() -> None:
    for asked, names in (
        ([OF_K3S], "containerd"),
        ([OF_K3S, OF_CRI_O, OF_CONTAINERD], "containerd and cri-o"),
        ([], "the container runtime"),
    ):
        stopped = with_runtimes(node(reservation(OLD), containers=[]), *asked, named="")
        assert crosscheck.list_of_kubelet_runtime(SnapshotIndex(stopped)) == Unavailable(
            "containers",
            f"no running pod sandbox is in the list of {names}, and neither the kubelet's flags and configuration nor "
            "its Node names its runtime: the pods of this node may belong to another one",
        )
    for chosen, expected in ((OF_DOCKER, True), (OF_CONTAINERD, False)):
        stopped = with_runtimes(
            node(reservation(OLD), containers=[], checkpoints=[]), chosen, named=None
        )
        assert isinstance(
            crosscheck.list_of_kubelet_runtime(SnapshotIndex(stopped)),
            Known if expected else Unavailable,
        )
    # An endpoint that was chosen needs no other evidence, as with k3s and --api=off.
    stopped = with_runtimes(
        node(reservation(OLD), containers=[], checkpoints=MISSING, pods=[]), CHOSEN, named=""
    )
    seen = crosscheck.all_sources(stopped)
    assert (seen.containers, seen.checkpoints) == (Known(()), NONE)


def test_two_containerds_that_were_both_asked_are_judged_together() -> None:
    """That of k3s, whose kubelet names none, and another one that serves CRI as well, and does not say its version."""
    beside = replace(OF_CONTAINERD, version="")
    both = with_runtimes(
        node(reservation(OLD), checkpoints=unavailable("checkpoints")),
        beside, OF_K3S, named="", reported="containerd://1.7.23-k3s2",
    )  # fmt: skip
    seen = crosscheck.all_sources(both)
    assert seen.containers == both.containers
    assert seen.checkpoints == NotRequested("checkpoints", "a kubelet with containerd has none")
    assert (kubelet_runtime(both).name, kubelet_runtime(both).without_record_order) == (
        CONTAINERD,
        (beside,),
    )
    assert (
        kubelet_runtime(replace(both, runtimes=Known((OF_DOCKER, OF_CRI_O)))).not_asked
        == "containerd://1.7.23-k3s2"
    )
    # That of the kubelet is down, and another one lists a container of its own.
    other = with_runtimes(
        node(reservation(OLD)), OF_CONTAINERD, named="", reported="containerd://1.7.23-k3s2"
    )
    assert crosscheck.all_sources(other).containers == Unavailable(
        "containers",
        "the runtime of this node is containerd://1.7.23-k3s2, and it was not asked: if it is stopped, start it; "
        "if it runs, set --cri-endpoint",
    )
    assert {entry.state for entry in assessment(crosscheck.all_sources(other)).reservations} == {
        State.UNKNOWN
    }


MISSING = Unavailable(
    "checkpoints",
    "none of these exists: /var/lib/dockershim/sandbox (check --checkpoint-dir)",
    True,
)
UNREADABLE = Unavailable(
    "checkpoints", "cannot read /var/lib/dockershim/sandbox: permission denied"
)
NONE = NotRequested("checkpoints", "a kubelet with containerd has none")


def test_without_a_name_of_the_runtime_a_missing_directory_means_no_checkpoints_unless_docker_was_asked() -> (
    None
):
    """As with k3s and --api=off: only a running sandbox shows whose pods these are."""
    cases: list[
        tuple[
            list[ContainerRuntime], Reading[tuple[Checkpoint, ...]], Reading[tuple[Checkpoint, ...]]
        ]
    ] = [
        ([OF_K3S], MISSING, NONE),
        ([OF_K3S], Known(()), NONE),
        ([OF_K3S], UNREADABLE, UNREADABLE),
        ([OF_K3S], node().checkpoints, node().checkpoints),  # those that exist count
        ([OF_K3S, OF_DOCKER], MISSING, MISSING),
        ([], MISSING, MISSING),
    ]
    for asked, checkpoints, expected in cases:
        for named in (None, ""):
            snapshot = replace(
                with_runtimes(node(reservation(OLD)), *asked, named=named),
                node=NotRequested("node", "--api=off"), checkpoints=checkpoints,
            )  # fmt: skip
            seen = crosscheck.all_sources(snapshot)
            assert seen.checkpoints == expected
            known = expected is NONE or isinstance(expected, Known)
            assert state(seen, OLD) is (State.LEAKED if known else State.UNKNOWN)
    left_alone = node(
        reservation(OLD), checkpoints=NotRequested("checkpoints", "it was left alone")
    )
    assert state(left_alone, OLD) is State.UNKNOWN
