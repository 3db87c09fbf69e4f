"""`nodeleak clean` on a real node: what it releases, what it keeps, and how a release is restored."""

import errno
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from secrets import token_hex

import pytest

from .node import (
    CNI_CACHE,
    STORE,
    Cluster,
    Pods,
    Trace,
    eventually,
    host_local,
    moved_away,
    process_in_the_namespace_of,
    remove_pod_containers,
    reservations,
    running_sandboxes,
    throughout,
    traces,
)
from .nodeleak import BOLD, DROPPED, NO_STORE_TO_WRITE, Cleaned, Nodeleak, Report, release

pytestmark = pytest.mark.e2e

HASTY = (*BOLD, "--confirm-after=100ms")
FOREIGN_RANGE = "10.99.0.0/24"


def test_a_full_range_is_released_and_nothing_else_changes(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    by_the_kubelet = _leaked_by_the_kubelet(cluster, pods, times=2)
    healthy = pods.running()
    free = nodeleak.scan().network["free"]
    # Leaks of the kubelet are identical files, but take longer to create.
    leaked = by_the_kubelet.keys() | set(cluster.reserve(free))
    reserved_before = reservations()
    (waiting,) = pods.ask_for(1)
    events = ("get", "events", f"--field-selector=involvedObject.name={waiting}")
    eventually(
        lambda: "no IP addresses available in range set" in cluster.kubectl(*events), equal=True
    )

    with cluster.frozen("kubelet"):
        before = eventually(_still)

        wary = nodeleak.clean("--confirm-after=100ms")
        assert wary.addresses.keys() == leaked
        assert {one["verdict"] for one in wary.addresses.values()} == {"refused"}
        assert wary.settings == [], "none is offered while the kubelet has just started"
        assert all("the kubelet started" in one["why"] for one in wary.addresses.values())
        assert all(
            "of network kubenet looks leaked" in one["why"] for one in wary.addresses.values()
        )

        def can_release_all() -> Cleaned:
            dry = nodeleak.clean(*HASTY)
            assert dry.verdicts == dict.fromkeys(leaked, "would_release")
            return dry

        dry = eventually(can_release_all)
        assert (dry.free, dry.document["applied"]) == ((0, len(leaked)), False)
        assert traces(STORE, CNI_CACHE) == before
        assert not nodeleak.state_dir.exists()

        done = nodeleak.clean("--apply", *HASTY)
        assert done.verdicts == dict.fromkeys(leaked, "released")
        assert done.free == (0, len(leaked))
        after = traces(STORE, CNI_CACHE)
        assert before.keys() - after.keys() == _files_of(
            {ip: reserved_before[ip] for ip in leaked}, before
        )
        for id_ in by_the_kubelet.values():
            assert {
                CNI_CACHE / f"kubenet-{id_}-eth0",
                CNI_CACHE / f"kubenet-loopback-{id_}-lo",
            } <= before.keys()
        assert _files(after).items() <= _files(before).items()

    eventually(lambda: pods.phases(waiting), equal={"Running"})
    everyone = pods.running()
    assert everyone.items() > healthy.items()
    for ip in everyone:
        _answers(ip)

    (taken,) = everyone.keys() - healthy.keys()
    assert taken in leaked
    for consent in ((), ("--apply",)):
        assert f"{taken} of network kubenet is reserved again" in nodeleak.restore(
            taken, *consent, codes=[4]
        )
    assert reservations()[taken] == running_sandboxes()[everyone[taken]]

    ip, id_ = next((ip, id_) for ip, id_ in by_the_kubelet.items() if ip != taken)
    assert ("would restore" in nodeleak.restore(ip), ip in reservations()) == (True, False)
    assert nodeleak.restore(ip, "--apply").startswith(f"restored: {ip}")
    _is_as_before(_files_of({ip: id_}, before), before)
    assert nodeleak.clean("--apply", *HASTY).verdicts == {ip: "not_confirmed"}, (
        "somebody restored it"
    )
    assert nodeleak.clean("--apply", f"--ip={ip}", *HASTY).verdicts == {ip: "released"}
    assert reservations().keys() == everyone.keys()

    entries = nodeleak.journal()
    assert [entry["by"] for entry in entries] == ["clean"] * (len(leaked) + 1)
    assert {entry["outcome"] for entry in entries} == {"released"}
    assert {(entry["files"][0]["name"], entry["container_id"]) for entry in entries} == {
        (ip, reserved_before[ip]) for ip in leaked
    }
    assert [entry["container_id"] for entry in entries if entry["restored"]] == [id_]


def test_a_reservation_with_a_kubelet_checkpoint_is_not_released(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    old = pods(2)
    (one, gone), (other, last) = old.items()
    before = reservations()
    with cluster.frozen("kubelet"):
        remove_pod_containers([gone])
        cleaning = nodeleak.clean("--apply", *HASTY)
        assert cleaning.verdicts == {one: "teardown_pending"}
        assert cleaning.addresses[one]["setting"] is None
        assert "its checkpoint remains" in cleaning.addresses[one]["why"]

        remove_pod_containers([last])
        # Now docker lists no container of the pods that run according to the API server.
        assert nodeleak.clean("--apply", *HASTY, codes=[3]).unavailable == {"containers"}
        cleaning = nodeleak.clean("--apply", *HASTY, "--api=off")
        assert cleaning.verdicts == dict.fromkeys((one, other), "teardown_pending")
        assert reservations() == before

    # Once a minute the kubelet tears down sandboxes that have only a checkpoint.
    eventually(lambda: {*before.values()} & {*reservations().values()}, equal=set())
    assert nodeleak.journal() == []


def test_an_address_of_a_process_is_released_only_after_the_process_ended(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    (ip,) = pods(1)
    (sandbox,) = running_sandboxes().values()
    with process_in_the_namespace_of(
        sandbox
    ) as survivor:  # as a docker upgrade that moves its directory leaves it
        cluster.leak()
        new = pods.running()
        assert ip not in new

        def is_unmanaged() -> Report:
            """The API server may list the pods as they were a moment ago."""
            scan = nodeleak.scan("--grace=0s", "--exit-code", codes=[1])
            assert scan.states == {ip: "unmanaged"} | dict.fromkeys(new, "in_use")
            return scan

        scan = eventually(is_unmanaged)
        (finding,) = scan.findings
        assert (finding["detector"], finding["subject"]) == ("unmanaged_address", f"kubenet/{ip}")
        assert f"process {survivor.pid} (sleep)" in finding["message"]
        assert sandbox[:12] in finding["message"]
        assert nodeleak.scan("--grace=0s", "--api=off").verdicts == scan.verdicts

        for more in (("--api=on",), ("--api=off",)):
            cleaning = nodeleak.clean("--apply", *HASTY, f"--ip={ip}", *more)
            assert cleaning.verdicts == {ip: "address_in_use"}
            assert (
                f"process {survivor.pid} (sleep) has the address" in cleaning.addresses[ip]["why"]
            )
            assert cleaning.addresses[ip]["setting"] is None
        _holds({ip, *new})

    eventually(lambda: nodeleak.scan("--grace=0s").having("leaked"), equal={ip})
    release(lambda: nodeleak.clean("--apply", *HASTY), {ip})
    _holds(new)


def test_an_address_outside_the_pod_cidr_is_released_only_by_name(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    owners = pods(1)
    (leaked,) = cluster.reserve(1)
    unrecognized = host_local("ADD", token_hex(32), [FOREIGN_RANGE])["ips"][0]["address"].partition(
        "/"
    )[0]

    cleaning = nodeleak.clean("--apply", *HASTY)
    assert cleaning.verdicts == {leaked: "released", unrecognized: "outside_range"}
    assert cleaning.settings == [f"--ip={unrecognized}"]
    _holds({unrecognized, *owners})

    assert nodeleak.clean("--apply", *HASTY, *cleaning.settings).verdicts == {
        unrecognized: "released"
    }
    _holds(owners)


def test_while_one_source_is_unavailable_nothing_is_released(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    owners = pods(1)
    (leaked,) = cluster.reserve(1)
    before = traces(STORE, CNI_CACHE)

    def refuses(source: str) -> None:
        cleaning = nodeleak.clean("--apply", *HASTY, codes=[3])
        assert cleaning.unavailable >= {source}
        assert set(cleaning.verdicts.values()) <= {"source_unavailable"}

    with cluster.stopped("apiserver"):
        refuses("pods")
        assert nodeleak.clean(*HASTY, "--api=off").verdicts == {leaked: "would_release"}
    with moved_away(STORE):
        refuses("reservations")
    with moved_away(Path("/var/lib/dockershim/sandbox")):
        refuses("checkpoints")
    assert traces(STORE, CNI_CACHE) == before

    assert nodeleak.clean("--apply", *HASTY, "--api=off").verdicts == {leaked: "released"}
    _holds(owners)


def test_while_docker_is_stopped_nothing_is_released(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    pods(1)
    (leaked,) = cluster.reserve(1)
    # The kubelet tears down containers that the engine stops during its shutdown.
    with cluster.frozen("kubelet"), cluster.stopped("docker"):
        before = traces(STORE, CNI_CACHE)
        cleaning = nodeleak.clean("--apply", *HASTY, codes=[3])
        assert (cleaning.unavailable, cleaning.addresses) == ({"containers"}, {})
        assert nodeleak.clean("--apply", *HASTY, "--api=off", codes=[3]).unavailable == {
            "containers"
        }
        assert traces(STORE, CNI_CACHE) == before
    pods.running()
    release(lambda: nodeleak.clean("--apply", *HASTY, f"--ip={leaked}"), {leaked})


def test_it_needs_no_capability_and_reports_a_read_only_mount(
    cluster: Cluster, pods: Pods, nodeleak: Nodeleak
) -> None:
    owners = pods(1)
    leaked = cluster.reserve(2)
    before = traces(STORE)

    cleaning = nodeleak.clean("--apply", *HASTY, wrapped=NO_STORE_TO_WRITE, codes=[4])
    assert cleaning.verdicts == dict.fromkeys(leaked, "failed")
    assert all(f"{STORE}: read-only mount" in one["why"] for one in cleaning.addresses.values())
    dry = nodeleak.clean(*HASTY, wrapped=NO_STORE_TO_WRITE, codes=[6])
    assert dry.verdicts == dict.fromkeys(leaked, "would_release")
    assert traces(STORE) == before
    assert nodeleak.journal() == []

    done = nodeleak.clean("--apply", *HASTY, "--max=1", wrapped=DROPPED)
    assert done.verdicts == {leaked[0]: "released", leaked[1]: "over_budget"}
    assert nodeleak.clean("--apply", *HASTY, wrapped=DROPPED).verdicts == {leaked[1]: "released"}
    _holds(owners)


def _holds(ips: Iterable[str]) -> None:
    assert reservations().keys() == set(ips)


def _leaked_by_the_kubelet(cluster: Cluster, pods: Pods, times: int) -> dict[str, str]:
    """Cause leaks several times; return container id by leaked address."""
    leaked: dict[str, str] = {}
    for _ in range(times):
        leaked |= {ip: reservations()[ip] for ip in (pods.running() or pods(3))}
        cluster.leak()
    return leaked


def _still() -> dict[Path, Trace]:
    """Return the node's files once they stop changing."""
    before = traces(STORE, CNI_CACHE)
    throughout(lambda: None, 0.5)
    assert traces(STORE, CNI_CACHE) == before
    return before


def _files(found: Mapping[Path, Trace]) -> dict[Path, Trace]:
    return {path: trace for path, trace in found.items() if trace.content is not None}


def _files_of(leaked: Mapping[str, str], found: Iterable[Path]) -> set[Path]:
    """The files of sandboxes: their reservations and their entries in libcni's cache."""
    cached = {
        path
        for path in found
        if path.parent == CNI_CACHE and any(id_ in path.name for id_ in leaked.values())
    }
    return cached | {STORE / ip for ip in leaked}


def _is_as_before(paths: Iterable[Path], before: Mapping[Path, Trace]) -> None:
    now = traces(STORE, CNI_CACHE)
    for path in paths:
        was, is_ = before[path], now[path]
        assert (is_.mode, is_.owner, is_.mtime_ns, is_.content) == (
            was.mode,
            was.owner,
            was.mtime_ns,
            was.content,
        )


def _answers(ip: str) -> None:
    """A connection to a live pod without a listener is refused at once; a dead address times out."""
    with socket.socket() as knocking:
        knocking.settimeout(5)
        assert knocking.connect_ex((ip, 9)) == errno.ECONNREFUSED
