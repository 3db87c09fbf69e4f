"""scan and clean on nodes whose pods do not use the directory that is read: it is left over, elsewhere, or missing."""

import base64
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cleanup.stores import may_mount
from tests.cli.commands import nodeleak
from tests.fakes import cri
from tests.fakes.apiserver import apiserver
from tests.fakes.engine import engine
from tests.fakes.grpc_server import FakeGrpcServer
from tests.fakes.host import Host, build, write_kubeconfig
from tests.fakes.nodes import FakeNode, PodSandbox, addresses, healthy, the_incident

NOW: Final = datetime.now(UTC)  # noqa: TID251 (a stand-in's files are as old as a real one's)
NINETY_DAYS_AGO: Final = (NOW - timedelta(days=90)).timestamp()
CIDR: Final = "10.244.1.0/24"
KIND: Final = "/run/cni-ipam-state"  # The dataDir of its network


@dataclass(frozen=True)
class Stand:
    """A node in a private directory, with fakes of docker and the API server."""

    node: FakeNode
    host: Host

    def options(self, api: str = "on", *more: str) -> list[str]:
        asked = (
            ["--api=off"]
            if api == "off"
            else [f"--node={self.node.name}", f"--kubeconfig={self.host.kubeconfig}"]
        )
        return [*asked, *self.host.options, "--confirm-after=1ms", *more]

    def scan(self, *more: str, api: str = "on", code: int = 0) -> Any:
        done = nodeleak("scan", "-o", "json", *self.options(api, *more))
        assert (done.code, done.err) == (code, ""), done
        return json.loads(done.out)

    def text(self, *more: str, api: str = "on") -> str:
        return nodeleak("scan", *self.options(api, *more)).out

    def cleaned(self, *more: str, api: str = "on", prefix: tuple[str, ...] = ()) -> Any:
        done = nodeleak(
            "clean",
            "-o",
            "json",
            "--cleanup-network=auto",
            *self.options(api, *more),
            prefix=prefix,
        )
        assert done.err == "", done
        return json.loads(done.out)

    @property
    def reserved(self) -> set[str]:
        return {path.name for path in self.host.store.iterdir() if path.name.startswith("10.")}


@contextmanager
def standing(
    directory: Path, node: FakeNode, networks: str = "", *, not_ready: str = ""
) -> Iterator[Stand]:
    """`networks`: `cniconfig` of containerd; empty: it names none, as CRI-O.

    `not_ready`: why the runtime's network is not ready; empty: it is.
    """
    host = build(directory / "node", node)
    with ExitStack() as stack:
        if node.uses_docker:
            stack.enter_context(engine(host.docker_socket, node))
        else:
            runtime = cri.of_node(node, {"cniconfig": networks} if networks else {})
            runtime.network_not_ready = not_ready
            stack.enter_context(FakeGrpcServer(host.containerd_socket, runtime.answer))
        write_kubeconfig(host, stack.enter_context(apiserver(node)))
        yield Stand(node, host)


def a_node(**changes: Any) -> FakeNode:
    return replace(healthy(NOW, 5, CIDR), **changes)


def leave_over(store: Path, ips: list[str]) -> None:
    """Write reservations of containers that were gone 90 days ago."""
    store.mkdir(exist_ok=True)
    for number, ip in enumerate(ips):
        path = store / ip
        path.write_text(f"{number:064x}\r\neth0")
        os.utime(path, (NINETY_DAYS_AGO, NINETY_DAYS_AGO))


OF_A_POD: Final = [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web-0"]]


def cache_result(
    cache: Path,
    network: str,
    container_id: str,
    ip: str,
    ifname: str = "eth0",
    config: Any = None,
    **more: Any,
) -> Path:
    """Write what libcni keeps of an ADD. `config`: of its network; None: it has none, as that of other programs."""
    path = cache / f"{network}-{container_id}-{ifname}"
    kept = {
        "kind": "cniCacheV1",
        "containerId": container_id,
        "networkName": network,
        "ifName": ifname,
    }
    if config is not None:
        kept["config"] = base64.b64encode(json.dumps({"name": network, **config}).encode()).decode()
    path.write_text(json.dumps({**kept, "result": {"ips": [{"address": f"{ip}/24"}]}, **more}))
    return path


def every_address() -> list[str]:
    return [f"10.244.1.{last}" for last in range(2, 255)]


def subjects(document: Any) -> list[str]:
    return [f"{one['detector']} {one['subject']}" for one in document["findings"]]


def leaks(document: Any) -> list[str]:
    return [one for one in subjects(document) if one.startswith("leaked_reservation ")]


def kubenet(document: Any) -> Any:
    (network,) = (one for one in document["networks"] if one["name"] == "kubenet")
    return network


# Not in use


@pytest.mark.parametrize("left", [0, 5, 253], ids=["empty", "of live pods", "full"])
@pytest.mark.parametrize("api", ["on", "off"])
def test_the_kubenet_directory_of_a_node_that_moved_to_another_network_is_no_fault(
    tmp_path: Path, left: int, api: str
) -> None:
    with standing(tmp_path, a_node(network="cbr0")) as stand:
        leave_over(stand.host.store, every_address()[:left])
        before = stand.reserved
        document = stand.scan(api=api)
        assert subjects(document) == (["left_over_network kubenet"] if left else [])
        assert document["unavailable"] == []
        assert {one["network"] for one in document["reservations"]} == {"cbr0"}
        told = "the pods of this node get their addresses from network cbr0"
        assert kubenet(document) == {
            "name": "kubenet", "ranges": None, "usable": None, "reserved": None, "free": None, "states": None,
            "not_in_use": told,
        }  # fmt: skip
        assert f"not in use: {told}" in stand.text(api=api)
        assert "kubenet: not in use" in stand.text("--map", api=api)
        assert stand.cleaned("--apply", "--settle=0s", api=api)["addresses"] == []
        assert stand.reserved == before


@pytest.mark.parametrize("api", ["on", "off"])
def test_kubenet_as_the_network_of_containerd_is_judged_and_cleaned_unless_that_may_list_late(
    tmp_path: Path, api: str
) -> None:
    left = every_address()[5:15]
    with standing(tmp_path / "late", a_node(runtime="containerd://1.6.8")) as stand:
        leave_over(stand.host.store, left)
        before = stand.reserved
        assert len(leaks(stand.scan(api=api))) == 10
        cleaned = stand.cleaned("--apply", "--grace=0s", "--settle=0s", "--max-share=100%", api=api)
        assert {(one["reason"], one["setting"]) for one in cleaned["addresses"]} == {
            ("runtime_unordered", None)
        }
        assert stand.reserved == before
    with standing(tmp_path, a_node(runtime="containerd://1.7.24")) as stand:
        leave_over(stand.host.store, left)
        assert set(leaks(stand.scan(api=api))) == {
            f"leaked_reservation kubenet/{ip}" for ip in left
        }
        cleaned = stand.cleaned("--apply", "--settle=0s", "--max-share=100%", api=api)
        assert {one["ip"] for one in cleaned["addresses"] if one["verdict"] == "released"} == set(
            left
        )
        assert stand.reserved >= {one.ip for one in stand.node.running}


def test_while_a_node_moves_pods_of_both_networks_have_their_reservation(tmp_path: Path) -> None:
    """One pod still has its address from kubenet: kubenet is in use, and the new network may give the address out."""
    with standing(tmp_path, a_node(network="cbr0")) as stand:
        first = stand.node.running[0]
        stand.host.store.mkdir()
        shutil.move(stand.host.networks / "cbr0" / first.ip, stand.host.store / first.ip)
        document = stand.scan()
        assert kubenet(document)["not_in_use"] is None
        assert subjects(document) == [
            f"unreserved_pod_ip cbr0/{first.ip} of pod {first.namespace}/{first.pod}",
            "overlapping_ranges cbr0 and kubenet",
        ]


# Unknown whether in use, or in use: judged


def test_a_podman_container_does_not_put_a_drained_node_out_of_use(tmp_path: Path) -> None:
    node = the_incident(NOW)
    with standing(tmp_path, replace(node, running=(), pending=())) as stand:
        (stand.host.cache / f"podman-{'d' * 64}-eth0").write_text(
            json.dumps({"ip4": {"ip": "10.88.0.2/16"}})
        )
        assert len(leaks(stand.scan())) == 7


def test_the_leaks_of_a_secondary_network_are_found_while_no_pod_uses_it(tmp_path: Path) -> None:
    for ifname in ("net1", "storage-if"):
        with standing(tmp_path / ifname, a_node()) as stand:
            leak = stand.host.networks / "storage/10.99.0.7"
            leave_over(leak.parent, [leak.name])
            leak.write_text(f"{'9' * 64}\r\n{ifname}")
            os.utime(leak, (NINETY_DAYS_AGO, NINETY_DAYS_AGO))
            cached = json.dumps({"ip4": {"ip": "10.99.0.7/24"}})
            (stand.host.cache / f"storage-{'9' * 64}-{ifname}").write_text(cached)
            assert "leaked_reservation storage/10.99.0.7" in subjects(
                stand.scan("--network=kubenet,storage", api="off")
            )


@pytest.mark.parametrize(("api", "code"), [("on", 0), ("off", 3)])
def test_a_node_that_returned_to_kubenet_is_judged_while_its_pods_have_addresses_of_another_network(
    tmp_path: Path, api: str, code: int
) -> None:
    """The kubelet makes the next pods with kubenet, whose leaks leave them no address."""
    node = a_node(network="cbr0", network_plugin="kubenet")
    for left in (0, 5) if api == "on" else ():
        with standing(tmp_path / str(left), node) as stand:
            leave_over(stand.host.store, every_address()[5 : 5 + left])
            document = stand.scan()
            # The pods that run have the addresses of another network, and kubenet will give them out.
            unreserved = [
                one for one in subjects(document) if one.startswith("unreserved_pod_ip kubenet/")
            ]
            assert (len(leaks(document)), len(unreserved), len(subjects(document))) == (
                left,
                5,
                left + 5 + 1,
            )
    with standing(tmp_path, replace(node, pending=(("shop", "web-1"), ("shop", "web-2")))) as stand:
        leave_over(stand.host.store, every_address())
        document = stand.scan(api=api, code=code)
        assert kubenet(document)["not_in_use"] is None
        assert len(leaks(document)) == 248
        # Only the API server knows the range, which a release needs too: no result in libcni's cache is of kubenet.
        assert ("exhausted_range kubenet" in subjects(document)) is (api == "on")
        released = 0
        for _ in range(5):  # a run of a busy machine ends a minute after its snapshot
            done = stand.cleaned("--apply", "--max-share=100%", api=api)
            released += done["verdicts"]["released"]
            if api == "off" or released == 248:
                break
        assert released == (248 if api == "on" else 0)
        assert stand.reserved >= {
            sandbox.ip for sandbox in stand.node.running
        }  # cbr0 gave them the same addresses


@pytest.mark.parametrize("docker", ["runs", "is stopped"])
def test_a_directory_with_the_reservations_of_the_pods_is_in_use_at_any_path(
    tmp_path: Path, docker: str
) -> None:
    """The agent sees it where it is mounted, and the configuration has its path on the node."""
    node = a_node(network="cbr0", data_dir="/var/lib/cni/networks")
    with standing(tmp_path, node) as stand:
        leave_over(stand.host.networks / "cbr0", every_address()[5:])
        if docker == "is stopped":
            shutil.rmtree(stand.host.proc / "812")  # dockerd
        document = stand.scan("--network=cbr0", code=3 if docker == "is stopped" else 0)
        assert document["networks"][0]["not_in_use"] is None
        assert "exhausted_range cbr0" in subjects(document)


# Missing


def a_control_plane(leaked: tuple[PodSandbox, ...] = ()) -> FakeNode:
    """A node whose pods all use its own network."""
    node = the_incident(NOW)
    on_host = tuple(one for one in node.running if not one.ip)
    return replace(node, running=on_host, leaked=leaked, pending=())


@contextmanager
def without_networks(directory: Path, node: FakeNode, *, mounted: bool = True) -> Iterator[Stand]:
    """Remove what host-local and libcni would have made; not mounted: the directory above them too."""
    with standing(directory, node) as stand:
        shutil.rmtree(stand.host.networks.parent)
        if mounted:
            stand.host.networks.parent.mkdir()
        yield stand


@pytest.mark.parametrize("api", ["on", "off"])
def test_what_no_pod_ever_needed_is_not_missing(tmp_path: Path, api: str) -> None:
    node = a_control_plane()
    with without_networks(tmp_path / "a", node) as stand:
        document = stand.scan(api=api)
        assert (document["unavailable"], subjects(document)) == ([], [])
        assert kubenet(document)["reserved"] == 0
    with standing(tmp_path / "c", a_control_plane(leaked=the_incident(NOW).leaked)) as stand:
        shutil.rmtree(stand.host.store)
        assert subjects(stand.scan(api=api)) == [], "somebody removed it"
    with without_networks(
        tmp_path / "b", replace(node, network="cbr0", runtime="containerd://1.7.24")
    ) as stand:
        assert stand.scan("--network=cbr0")["unavailable"] == []
        assert stand.cleaned("--network=cbr0", "--cleanup-network=cbr0")["blockers"] == []


@pytest.mark.parametrize("api", ["on", "off"])
def test_what_is_missing_although_pods_may_need_it_is_unavailable(tmp_path: Path, api: str) -> None:
    def missing(stand: Stand, *arguments: str, api: str = api) -> list[str]:
        return [one["source"] for one in stand.scan(*arguments, api=api, code=3)["unavailable"]]

    with without_networks(tmp_path / "a", a_control_plane(), mounted=False) as stand:
        assert missing(stand) == ["reservations", "cni_results"]
    with without_networks(tmp_path / "b", a_node()) as stand:
        assert "reservations" in missing(stand)
    with without_networks(
        tmp_path / "c", replace(a_control_plane(), runtime="containerd://1.7.24")
    ) as stand:
        assert {"reservations", "pods"} <= {
            *missing(stand, "--network=cbr0", "--node=another", api="on")
        }


def test_a_pod_without_a_reservation_is_reported_unless_its_sandbox_is_being_made_again(
    tmp_path: Path,
) -> None:
    """Its status has the old address, and the new sandbox runs but has no address yet."""
    node = a_node()
    first, *others = node.running
    made_again = replace(first, id="a" * 64, made=datetime.now(UTC), starting=True)  # noqa: TID251 (as above)
    with standing(tmp_path, replace(node, running=(made_again, *others))) as stand:
        (stand.host.store / first.ip).unlink()
        assert subjects(stand.scan()) == []
        for sandbox in others:
            (stand.host.store / sandbox.ip).unlink()
        assert {one.partition(" ")[0] for one in subjects(stand.scan())} == {"unreserved_pod_ip"}


# Checkpoints of a kubelet that no longer runs


def leave_checkpoints(stand: Stand, when: float = NINETY_DAYS_AGO) -> str:
    """Write a checkpoint of each leak where another runtime had them; return the option that reads it."""
    directory = stand.host.root / "var/lib/other/sandbox"
    directory.mkdir(parents=True)
    for sandbox in stand.node.leaked:
        path = directory / sandbox.id
        path.write_text(
            json.dumps({"name": sandbox.pod, "namespace": sandbox.namespace, "data": {}})
        )
        os.utime(path, (when, when))
    return f"--checkpoint-dir={directory}"


@pytest.mark.parametrize("api", ["on", "off"])
def test_checkpoints_that_the_runtime_before_left_hide_no_leak_unless_they_are_new_or_no_sandbox_runs(
    tmp_path: Path, api: str
) -> None:
    """Then the kubelet has changed its runtime, and no pod that runs is newer than that."""
    node, drained = the_incident(NOW), replace(the_incident(NOW), running=(), pending=())
    for name, of, when in (("a", node, NOW.timestamp()), ("b", drained, NINETY_DAYS_AGO)):
        with standing(tmp_path / name, of) as stand:
            document = stand.scan(leave_checkpoints(stand, when), api=api)
            assert kubenet(document)["states"]["teardown_pending"] == 7
    with standing(tmp_path, node) as stand:
        both = leave_checkpoints(stand)
        assert len(leaks(stand.scan(both, api=api))) == 7
        assert stand.cleaned(both, "--apply", api=api)["verdicts"]["released"] == 7


# Networks that no setting names

BRIDGE: Final = {"type": "bridge", "ipam": {"type": "host-local", "ranges": [[{"subnet": CIDR}]]}}


def states(document: Any) -> dict[str, Any]:
    return {one["name"]: one["not_in_use"] or one["reserved"] for one in document["networks"]}


@pytest.mark.parametrize("api", ["on", "off"])
def test_containerd_names_the_network_and_everything_else_is_listed(
    tmp_path: Path, api: str
) -> None:
    node = a_node(network="cbr0", runtime="containerd://1.7.24")
    with standing(tmp_path, node, cri.cniconfig(BRIDGE, name="cbr0")) as stand:
        leave_over(stand.host.networks / "cbr0", every_address()[5:9])
        leave_over(stand.host.networks / "docker0", ["172.17.0.2", "172.17.0.3"])
        leave_over(stand.host.networks / "podman", ["10.88.0.2"])
        nerdctl = stand.host.networks / "bridge"
        nerdctl.mkdir()
        (nerdctl / "10.4.0.2").write_text(f"default-{'a' * 64}")
        document = stand.scan(api=api)
        instead = "the pods of this node get their addresses from network cbr0"
        assert states(document) == {
            "cbr0": 9, "docker0": instead,
            "podman": "its addresses are those of podman", "bridge": "its addresses are those of nerdctl",
        }  # fmt: skip
        assert [one for one in subjects(document) if one.startswith("left_over")] == [
            "left_over_network docker0"
        ]
        assert len(leaks(document)) == 4
        before = {
            path: path.read_bytes() for path in stand.host.networks.rglob("*") if path.is_file()
        }
        cleaned = stand.cleaned("--apply", "--settle=0s", api=api)
        assert {one["network"] for one in cleaned["addresses"]} == {"cbr0"}
        after = {
            path: path.read_bytes() for path in stand.host.networks.rglob("*") if path.is_file()
        }
        gone = {path.relative_to(stand.host.networks) for path in before.keys() - after.keys()}
        assert gone == {Path("cbr0", ip) for ip in every_address()[5:9]}


def test_a_network_that_containerd_does_not_name_is_not_cleaned_unless_named(
    tmp_path: Path,
) -> None:
    node = a_node(network="cbr0", runtime="containerd://1.7.24")
    with standing(tmp_path, node, cri.cniconfig(BRIDGE, name="other")) as stand:
        leave_over(stand.host.networks / "cbr0", ["10.244.1.99"])
        document = stand.scan()
        assert leaks(document) == ["leaked_reservation cbr0/10.244.1.99"], (
            "running pods have their addresses from it"
        )
        (address,) = stand.cleaned("--apply", "--settle=0s")["addresses"]
        assert (address["reason"], address["setting"]) == (
            "network_not_allowed",
            "--cleanup-network=auto,cbr0",
        )
        assert "10.244.1.99" in {path.name for path in (stand.host.networks / "cbr0").iterdir()}


def test_results_that_crio_deletes_when_it_starts_stay_and_nothing_is_said_of_them(
    tmp_path: Path,
) -> None:
    for version, left in (("1.31.13", 0), ("1.35.6", 7)):
        node = replace(the_incident(NOW), network="crio", runtime=f"cri-o://{version}")
        with standing(tmp_path / version, node) as stand:
            assert stand.cleaned("--apply", "--settle=0s")["verdicts"]["released"] == 7
            results = {path.name.split("-")[1] for path in stand.host.cache.iterdir()}
            assert len(results & {one.id for one in node.leaked}) == left
            journal = "".join(path.read_text() for path in stand.host.root.rglob("journal/*.json"))
            assert '"outcome": "released"' in journal
            assert "checkpoint" not in journal, "CRI-O has none, and none was looked for"
            assert not [
                one
                for one in subjects(stand.scan())
                if one.startswith(("leaked", "unmanaged", "unreserved"))
            ]


@contextmanager
def kind(directory: Path, data_dir: str = KIND) -> Iterator[tuple[Stand, Path, list[str]]]:
    """A node of kind with leaks, its network's directory as the agent sees it, and the options for that."""
    run = directory / "run"
    plugin = {
        "type": "ptp",
        "ipam": {"type": "host-local", "dataDir": data_dir, "ranges": [[{"subnet": CIDR}]]},
    }
    node = a_node(network="kindnet", data_dir=data_dir, runtime="containerd://2.1.4")
    with standing(directory, node, cri.cniconfig(plugin, name="kindnet")) as stand:
        run.mkdir()
        own = run / Path(data_dir).relative_to("/run") / "kindnet"
        shutil.move(stand.host.networks, own.parent)
        stand.host.networks.mkdir()
        leave_over(own, every_address()[5:9])
        yield stand, own, [f"--run-dir={run}", f"--state-dir={directory / 'state'}"]


@pytest.mark.parametrize("data_dir", [KIND, "/run/cni"])
def test_a_network_in_another_data_directory_is_released_and_restored(
    tmp_path: Path, data_dir: str
) -> None:
    with kind(tmp_path, data_dir) as (stand, directory, where):
        before = {path.name: path.read_bytes() for path in directory.iterdir()}
        leaked = every_address()[5:9]
        assert len(leaks(stand.scan(*where))) == 4
        with (directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert (
                stand.cleaned("--apply", "--settle=0s", "--lock-timeout=1ms", *where)["verdicts"][
                    "busy"
                ]
                == 4
            )
        assert stand.cleaned("--apply", "--settle=0s", *where)["verdicts"]["released"] == 4
        assert {path.name for path in directory.iterdir()} == before.keys() - set(leaked) | {"lock"}
        blind = (
            f"--cni-networks-dir={stand.host.networks}",
            f"--cni-cache-dir={tmp_path}/none",
            *where,
            f"--proc={stand.host.proc}",
            f"--cri-endpoint={tmp_path}/none",
            "--apply",
        )
        restore = (*stand.host.asking_options, *where, "--apply")
        entries = json.loads(nodeleak("journal", "-o", "json", where[1]).out)["entries"]
        assert {file["data_dir"] for one in entries for file in one["files"]} == {data_dir}
        for entry in entries:
            if entry["outcome"] == "released":
                # Nothing names the directory: whoever wrote the entry may mean any directory.
                refused = nodeleak("restore", entry["entry"], *blind)
                assert (refused.code, "has this dataDir" in refused.said) == (4, True), refused
                assert nodeleak("restore", entry["entry"], *restore).code == 0
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before | {
            "lock": b""
        }


def test_a_data_directory_that_is_mounted_read_only_names_the_manifest(tmp_path: Path) -> None:
    may_mount()
    with kind(tmp_path) as (stand, directory, where):
        prefix = (
            "unshare",
            "-m",
            "/bin/sh",
            "-c",
            'mount --bind -o ro "$0" "$0" && exec "$@"',
            str(directory),
        )
        dry = stand.cleaned(*where, prefix=prefix)
        applied = stand.cleaned("--apply", "--settle=0s", *where, prefix=prefix)
    why = [one["why"] for one in (*dry["blockers"], *applied["addresses"])]
    assert len(why) == 5
    assert all("mount it writable, as deploy/overlays/data-dir does" in one for one in why), why


SMALL: Final = "10.244.1.0/26"
FULL: Final = 61  # What that range can give to pods


def printed(text: str) -> list[list[str]]:
    """Return the commands of nodeleak that a page prints to be copied, in their order."""
    lines = (line.strip() for line in text.splitlines())
    commands = [line for line in lines if line.startswith("nodeleak clean") and "|" not in line]
    return [line.split()[1:] for line in commands]


@pytest.mark.parametrize("api", ["on", "off"])
@pytest.mark.parametrize("running", [12, 3, 0])
def test_a_range_full_of_leaks_is_released_by_the_commands_that_scan_prints(
    tmp_path: Path, api: str, running: int
) -> None:
    """Confirmed by twelve running pods; with fewer or without the API server, with a check."""
    waiting = tuple(("shop", f"web-{number}") for number in range(3))
    node = replace(healthy(NOW, running, SMALL), runtime="containerd://2.1.4", pending=waiting)
    by_host = replace(healthy(NOW, 1, SMALL).running[0], ip="")
    node = replace(node, running=(*node.running, by_host))
    with standing(tmp_path, node) as stand:
        leave_over(stand.host.store, addresses(IPv4Network(SMALL))[running:])
        assert len(stand.reserved) == FULL
        confirmed = api == "on" and running == 12
        quick = ("--settle=0s", *stand.options(api))
        shown, releasing = printed(stand.text(api=api))
        assert ("--max-share=100%" in releasing) is not confirmed
        assert ("--max-share=100%" in shown) is not confirmed
        dry = nodeleak(*shown, *quick).out
        assert f"{FULL - running} would be released" in dry
        plain = nodeleak("clean", "--cleanup-network=auto", *quick).out
        advised = "nodeleak clean --apply --cleanup-network=auto"
        assert advised in plain
        assert (f"{advised} --max-share=100%" in plain) is not confirmed
        refused = (
            f"0 would be released, {FULL - running} refused ({FULL - running} implausible_share)"
        )
        assert (refused in plain) is not confirmed
        done = nodeleak(*releasing, *quick, f"--state-dir={tmp_path / 'state'}")
        assert f"{FULL - running} released" in done.said, done
        assert len(stand.reserved) == running


@pytest.mark.parametrize("runtime", ["cri-o://1.35.6", "docker://19.3.15"])
def test_where_the_runtime_names_none_the_pods_show_the_network(
    tmp_path: Path, runtime: str
) -> None:
    with standing(tmp_path, a_node(network="cbr0", runtime=runtime)) as stand:
        leave_over(stand.host.networks / "cbr0", ["10.244.1.99"])
        leave_over(stand.host.networks / "docker0", ["172.17.0.2"])
        document = stand.scan()
        assert leaks(document) == ["leaked_reservation cbr0/10.244.1.99"]
        assert (
            states(document)["docker0"]
            == "the pods of this node get their addresses from network cbr0"
        )
        of_addresses = (
            "leaked_reservation",
            "unreserved_pod_ip",
            "shared_ip",
            "unmanaged_address",
            "exhausted_range",
        )
        assert [
            one for one in document["insufficient_data"] if one["detector"] in of_addresses
        ] == []
        assert stand.cleaned("--apply", "--settle=0s")["verdicts"]["released"] == 1
