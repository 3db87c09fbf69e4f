"""Debian's containerd, in namespaces and directories of its own: what the stand-in answers, a real one does."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.checks.kubelet_runtime import record_before_address
from agent.model.node_network import RuntimeStatus
from agent.model.runtime import (
    CONTAINERD,
    RuntimeNetwork,
    WrittenRange,
)
from agent.model.snapshot import Container
from agent.model.versions import version_numbers
from agent.sources.host.cni_config import networks_of
from agent.sources.runtime.cri import Cri
from agent.sources.runtime.grpc import GrpcConnection, GrpcError
from agent.sources.source_error import SourceError
from tests.fakes.cri import LABELS, PROTO, stored
from tests.fakes.host import configure
from tests.wire import needs, only_with, open_directory, run, until

A, B, C = "a" * 64, "b" * 64, "c" * 64
_PROGRAMS = ("containerd", "ctr", "unshare")

CONFIGURATION = """\
version = 2
root = "{at}/root"
state = "{at}/state"
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = "{at}/c.sock"
[plugins."io.containerd.grpc.v1.cri".cni]
conf_dir = "{at}/net.d"
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "native"
"""
RANGES = [[{"subnet": "10.231.0.0/24", "rangeStart": "10.231.0.9"}], [{"subnet": "usePodCidr"}]]
BRIDGE = {
    "type": "bridge",
    "ipam": {"type": "host-local", "dataDir": "/run/pods", "ranges": RANGES},
}
PORTMAP = {"type": "portmap", "capabilities": {"portMappings": True}}


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """Start containerd, and yield the directory of its socket."""
    missing = [one for one in _PROGRAMS if not shutil.which(one)]
    needs(not missing, f"{', '.join(missing)} (Debian: apt-get install containerd)")
    needs(os.geteuid() == 0, "root, to start containerd")
    with open_directory() as at:
        (at / "config.toml").write_text(CONFIGURATION.format(at=at))
        (at / "net.d").mkdir()
        configure(at / "net.d/10-pods.conflist", "pods", BRIDGE, PORTMAP)
        (at / "rootfs").mkdir()
        log = at / "log"
        with log.open("wb") as output:
            # It ends with the program that made its namespaces, and whatever it mounted goes with them.
            own = ("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
            command = (*own, "containerd", "--config", str(at / "config.toml"))
            process = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: S603
        try:
            until(
                lambda: process.poll() is not None or _answers(at),
                f"containerd answers ({log})",
                30,
            )
            needs(process.poll() is None, f"a containerd that starts: {log.read_text()[-500:]}")
            yield at
        finally:
            process.kill()  # unshare ignores SIGTERM
            process.wait(20)


def _answers(at: Path) -> bool:
    try:
        client(at).containers([])
    except SourceError:
        return False
    return True


def client(at: Path) -> Cri:
    return Cri(at / "c.sock", 10.0, time.perf_counter)


def create(at: Path, container_id: str, namespace: str = "k8s.io") -> None:
    """Record a container, as containerd does for a sandbox before it requests an address."""
    labels = [word for name, value in LABELS.items() for word in ("--label", f"{name}={value}")]
    rootfs = ("--rootfs", *labels, str(at / "rootfs"))
    run(
        "ctr",
        "-a",
        str(at / "c.sock"),
        "-n",
        namespace,
        "containers",
        "create",
        *rootfs,
        container_id,
    )


def delete(at: Path, container_id: str, namespace: str = "k8s.io") -> None:
    run("ctr", "-a", str(at / "c.sock"), "-n", namespace, "containers", "delete", container_id)


def test_it_names_itself_and_its_network_lists_nothing_and_denies_every_id(directory: Path) -> None:
    cri = client(directory)
    found = cri.identify()
    assert (found.name, found.version) == (CONTAINERD, run("containerd", "--version").split()[2])
    assert record_before_address(found.name, found.version)
    ranges = ((WrittenRange("10.231.0.0/24", "10.231.0.9"),), (WrittenRange("usePodCidr"),))
    expected = RuntimeNetwork("pods", ("bridge", "portmap"), "host-local", "/run/pods", ranges)
    assert [
        network for one in cri.networks().loaded or () for network in networks_of(one, dict)
    ] == [expected]
    assert cri.containers([]) == cri.containers([A, B, C, "default-" + A]) == ()
    assert cri.has(A) is False


def test_it_loads_nothing_while_its_first_file_is_damaged_and_says_so(directory: Path) -> None:
    cri = client(directory)
    damaged = directory / "net.d/05-mesh.conflist"
    try:
        damaged.write_text("\n")  # it takes no notice of a file that is only created
        until(lambda: cri.networks().loaded == (), "containerd has tried to load the files")
        found = cri.networks()
        assert found.status is not None
        assert found.status.network_ready is False
        assert found.status.reason == "NetworkPluginNotReady"
        assert "cni plugin not initialized" in found.status.message
        assert str(damaged) in found.status.load_error
        assert found.directory == directory / "net.d"
        assert (found.plugin_directories, found.root) == (
            (Path("/opt/cni/bin"),),
            directory / "root",
        )
    finally:
        damaged.unlink()
    until(lambda: bool(cri.networks().loaded), "containerd has loaded its network")
    assert cri.networks().status == RuntimeStatus(network_ready=True)


def test_a_record_of_any_namespace_that_cri_does_not_list_is_found_until_it_is_deleted(
    directory: Path,
) -> None:
    before = time.time()  # noqa: TID251 (containerd reads the real clock)
    create(directory, A)
    try:
        cri = client(directory)
        assert cri.containers([]) == (), "CRI does not list it"
        (found,) = cri.containers([B, A, C])
        assert found == Container(
            A, "recorded but not listed", found.created, "shop/web-0", "u-1", sandbox=True
        )
        assert before - 2 <= found.created <= before + 60
        assert (cri.has(A), cri.has(B)) == (True, False)
        create(directory, B, "moby")
        (other,) = cri.containers([B])
        assert (other.id, other.state, cri.has(B)) == (
            B,
            "in another namespace of containerd",
            True,
        )
        delete(directory, B, "moby")
    finally:
        delete(directory, A)
    assert client(directory).containers([A]) == ()
    assert client(directory).has(A) is False


def test_a_sandbox_that_only_the_store_has_is_found(directory: Path) -> None:
    cri, store = client(directory), "/containerd.services.sandbox.v1.Store"
    only_with(
        (version_numbers(cri.identify().version) or ()) >= (1, 7),
        "containerd >= 1.7, which has a store of sandboxes",
    )
    metadata = {"containerd-namespace": "k8s.io"}
    kept = PROTO["GotSandbox"](sandbox=stored(C)).SerializeToString()
    with GrpcConnection(directory / "c.sock", 10.0, time.perf_counter) as connection:
        connection.call(f"{store}/Create", kept, metadata)
        try:
            (found,) = cri.containers([A, C])
            assert (found.id, found.state, found.sandbox) == (C, "recorded but not listed", True)
            assert (cri.has(C), cri.has(A)) == (True, False), (
                "the store has sandboxes, and not this one"
            )
        finally:
            connection.call(f"{store}/Delete", PROTO["Id"](id=C).SerializeToString(), metadata)
    assert cri.has(C) is False


def test_many_ids_and_many_calls_are_answered(directory: Path) -> None:
    ids = [f"{number:064x}" for number in range(1500)]
    create(directory, ids[-1])
    try:
        assert [one.id for one in client(directory).containers(ids)] == [ids[-1]]
        with GrpcConnection(directory / "c.sock", 10.0, time.perf_counter) as connection:
            for one in ids[:1200]:
                with pytest.raises(GrpcError, match="not found"):
                    connection.call(
                        "/runtime.v1.RuntimeService/PodSandboxStatus", b"\x0a\x40" + one.encode()
                    )
    finally:
        delete(directory, ids[-1])
