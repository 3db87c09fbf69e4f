"""Which container runtimes a node asks: its process table and sockets are files, its runtimes fake servers."""

import gc
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agent.config import load
from agent.model.node_network import RuntimeStatus
from agent.model.runtime import CONTAINERD, DOCKER, ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import NotRequested, Unavailable
from agent.sources.source_error import SourceError
from tests.fakes.cri import FakeRuntime, cniconfig, sandbox
from tests.fakes.grpc_server import FakeGrpcServer
from tests.fakes.host import write_sockets
from tests.sources.reading import read
from tests.wire import Answer, FakeServer, Request, http, open_directory
from tests.wired import of_config, process_table

A, B = "a" * 64, "b" * 64
SOCKET, CRIO, MINE = "/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/mine.sock"
DOCKERS = "/run/docker.sock"
BRIDGE = {"type": "bridge", "ipam": {"type": "host-local"}}
CBR0 = (RuntimeNetwork("cbr0", ("bridge",), "host-local", forwards_ports=False),)

# The docker package forgets the socket of a client that could not be made; the collector finds it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


class Machine:
    """A node with docker, containerd, CRI-O and another runtime; each answers, whether it seems to run or not."""

    def __init__(self, home: Path) -> None:
        self.proc, self.run_dir, self.listed = home / "proc", home / "run", list[str]()
        self.cri = {
            SOCKET: FakeRuntime(),
            CRIO: FakeRuntime(name="cri-o", version="1.35.6"),
            MINE: FakeRuntime(name="mine"),
        }
        self.servers: dict[str, FakeGrpcServer] = {}
        for socket, runtime in self.cri.items():
            path = self.run_dir / Path(socket).relative_to("/run")
            path.parent.mkdir(parents=True, exist_ok=True)
            self.servers[socket] = FakeGrpcServer(path, runtime.answer)
        self.docker = FakeServer(self._docker, at=self.run_dir / "docker.sock")
        process_table(self.proc)

    def _docker(self, request: Request) -> Answer:
        if request.path == "/version":
            return [http('{"ApiVersion": "1.41"}')]
        if request.path.endswith("/containers/json"):
            return [
                http(
                    json.dumps(
                        [{"Id": one, "State": "running", "Created": 1} for one in self.listed]
                    )
                )
            ]
        container_id = request.path.split("/")[3]
        missing = http(
            json.dumps({"message": f"No such container: {container_id}"}), "404 Not Found"
        )
        return [http(json.dumps({"Id": container_id})) if container_id in self.listed else missing]

    def process(self, pid: int, *words: str) -> None:
        (self.proc / f"{pid}").mkdir(exist_ok=True)
        (self.proc / f"{pid}/stat").write_text(f"{pid} ({words[0]}) S {'0 ' * 18}50 0\n")
        (self.proc / f"{pid}/cmdline").write_text("".join(f"{word}\0" for word in words))

    def wire(self, commands: str, *listening: str, kubelet: str = "", **options: str) -> Any:
        """Let these processes run, and return what reads the node."""
        write_sockets(self.proc, *listening)
        self.process(
            7, "kubelet", *([f"--container-runtime-endpoint={kubelet}"] if kubelet else [])
        )
        for pid in range(8, 12):
            for file in (self.proc / f"{pid}").glob("*"):
                file.unlink()
        for pid, command in enumerate(commands.split(), 8):
            self.process(pid, command)
        given = {
            "api": "off",
            "proc": str(self.proc),
            "run_dir": str(self.run_dir),
            "device_plugins_dir": "off",
        }
        return of_config(load("scan", given | {"docker_host": self.docker.url} | options, {}))

    def connections(self) -> dict[str, int]:
        """Return how often each runtime was connected to since it was last asked for."""
        found = {socket: server.connections for socket, server in self.servers.items()}
        found[DOCKERS] = len(self.docker.requests)
        self.docker.requests.clear()
        for server in self.servers.values():
            server.connections = 0
        return {socket: count for socket, count in found.items() if count}


@pytest.fixture
def machine() -> Iterator[Machine]:
    with open_directory() as home, ExitStack() as stack:
        made = Machine(home)
        stack.enter_context(made.docker)
        for server in made.servers.values():
            stack.enter_context(server)
        yield made
    gc.collect()


def containers(wired: Any) -> list[str]:
    return [one.id for one in read(wired.snapshot, "containers").known()]


def asked(wired: Any) -> tuple[ContainerRuntime, ...]:
    return tuple(read(wired.snapshot, "runtimes").known())


def why(wired: Any, source: str = "containers") -> str:
    reading = read(wired.snapshot, source)
    assert isinstance(reading, Unavailable), reading
    return reading.why


def test_the_runtimes_that_run_or_are_named_are_asked_and_no_other(machine: Machine) -> None:
    both = ("dockerd containerd", DOCKERS, SOCKET)
    all_known = (*both, MINE)
    for what, kubelet, options, expected in (
        (both, "unix:///run/cri-dockerd.sock", {}, [DOCKERS]),
        (("containerd", SOCKET), "", {}, [SOCKET]),
        (("containerd", SOCKET), f"unix://{SOCKET}", {}, [SOCKET]),
        (
            ("dockerd containerd", "/var/run/docker.sock", SOCKET),
            f"unix://{SOCKET}",
            {},
            [SOCKET, DOCKERS],
        ),
        (("crio", "/var/run/crio/crio.sock"), "unix:///var/run/crio/crio.sock", {}, [CRIO]),
        (("dockerd", DOCKERS, SOCKET), "", {}, [DOCKERS]),  # systemd listens in place of containerd
        (all_known, "", {"runtime": "docker"}, [DOCKERS]),
        (all_known, "", {"runtime": "cri"}, [SOCKET]),
        (all_known, "", {"runtime": "cri", "cri_endpoint": MINE}, [MINE]),
        (all_known, "", {"runtime": "auto", "cri_endpoint": f"/var{MINE}"}, [MINE, DOCKERS]),
    ):
        wired = machine.wire(*what, kubelet=kubelet, **options)
        assert wired.recheck.has_container(A) is False
        machine.connections()
        assert containers(wired) == []
        assert sorted(machine.connections()) == sorted(expected), (what, kubelet, options)
        if options.get("runtime") != "docker":
            assert [one.endpoint or DOCKERS for one in asked(wired)] == expected
            assert [one.chosen for one in asked(wired)] == [
                endpoint == MINE for endpoint in expected
            ]


def test_a_containerd_that_fails_makes_the_list_unavailable_and_one_without_cri_only_if_somebody_names_it(
    machine: Machine,
) -> None:
    both = ("dockerd containerd", DOCKERS, SOCKET)
    machine.cri[SOCKET].instead = {
        "Version": lambda call: call.fail(14, "server is not initialized yet")
    }
    wired = machine.wire(*both)
    assert "server is not initialized yet" in why(wired)
    assert asked(wired) == (ContainerRuntime(CONTAINERD, "", SOCKET),)
    with pytest.raises(SourceError, match="server is not initialized yet"):
        wired.recheck.has_container(A)
    machine.cri[SOCKET].instead, machine.cri[SOCKET].apis = {}, ()
    wired = machine.wire(*both)
    assert (containers(wired), [one.name for one in asked(wired)]) == ([], [DOCKER])
    assert wired.recheck.has_container(A) is False
    assert "no container runtime serves CRI at its socket" in why(
        machine.wire(*both, runtime="cri")
    )
    machine.connections()
    for kubelet, endpoint in ((f"unix://{SOCKET}", ""), ("", SOCKET)):
        wired = machine.wire(
            *both, kubelet=kubelet, **({"cri_endpoint": endpoint} if endpoint else {})
        )
        assert "unknown service runtime.v1alpha2.RuntimeService" in why(wired)
        assert asked(wired) == (ContainerRuntime(CONTAINERD, "", SOCKET, chosen=bool(endpoint)),)
        with pytest.raises(SourceError, match="unknown service"):
            wired.recheck.has_container(A)
        assert list(machine.connections()) == [SOCKET]


def test_two_runtimes_list_what_the_other_one_lacks_and_only_those_of_the_list_can_deny_it(
    machine: Machine,
) -> None:
    def lose_cri() -> None:
        machine.cri[SOCKET].apis = ()

    losses: list[Callable[[], None]] = [lose_cri, lambda: write_sockets(machine.proc, DOCKERS)]
    for lose in losses:
        machine.cri[SOCKET].apis, machine.listed = ("v1",), []
        wired = machine.wire("dockerd containerd", DOCKERS, SOCKET)
        assert containers(wired) == []
        assert wired.recheck.has_container(A) is False
        lose()
        with pytest.raises(SourceError, match=r"containerd 1\.7\.24 no longer serves its socket"):
            wired.recheck.has_container(A)
        machine.listed = [A]
        assert wired.recheck.has_container(A) is True
    machine.cri[SOCKET].sandboxes, machine.listed = [sandbox(A)], [B]
    wired = machine.wire("dockerd containerd", DOCKERS, SOCKET)
    assert containers(wired) == [A, B]
    assert [wired.recheck.has_container(one) for one in (A, B, "e" * 64)] == [True, True, False]


def test_a_runtime_that_does_not_run_is_not_connected_to(machine: Machine) -> None:
    named, stopped = (
        f"no container runtime listens at {SOCKET} on this node, so it was not",
        "docker does not run on this",
    )
    for commands, listening, kubelet, options, expected in (
        ("", [SOCKET], f"unix://{SOCKET}", {}, named),  # systemd listens in its place
        ("containerd", [], f"unix://{SOCKET}", {}, named),
        ("dockerd", [SOCKET, DOCKERS], f"unix://{SOCKET}", {}, named),
        ("", [], "", {}, "no container runtime runs on this node (no containerd or "),
        ("", [], "", {"runtime": "docker"}, stopped),
        ("", [], "unix:///run/cri-dockerd.sock", {}, stopped),
        ("containerd", [], "", {}, stopped),
        ("dockerd", [DOCKERS], "", {"runtime": "cri"}, "no container runtime listens at "),
    ):
        wired = machine.wire(commands, *listening, kubelet=kubelet, **options)
        assert why(wired).startswith(expected)
        with pytest.raises(SourceError) as raised:
            wired.recheck.has_container(A)
        assert str(raised.value).startswith(expected)
        assert machine.connections() == {}
    wired = machine.wire("dockerd containerd", DOCKERS, SOCKET)
    (machine.proc / "1/net/unix").unlink()
    assert why(wired).startswith(f"cannot read {machine.proc}/1/net/unix")
    assert machine.connections() == {}, "it is unknown what runs"


def test_processes_are_looked_for_once_a_snapshot_and_anew_by_a_recheck(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    wired = machine.wire("containerd", DOCKERS, CRIO, SOCKET, kubelet=f"unix://{SOCKET}")
    machine.cri[SOCKET].info = {"cniconfig": cniconfig(BRIDGE)}
    read(wired.snapshot, "processes")
    searched, list_directory = list[Path](), os.listdir

    def listdir(path: Path) -> list[str]:
        searched.append(path)
        return list_directory(path)

    monkeypatch.setattr(os, "listdir", listdir)
    for number in range(1, 4):
        assert read(wired.snapshot, "networks").known() == CBR0
        assert containers(wired) == []
        read(wired.snapshot, "processes")
        assert searched == [machine.proc] * number
    machine.listed = [A]
    machine.process(9, "dockerd")
    assert wired.recheck.has_container(A) is True


# networks


def test_the_kubelets_runtime_names_the_networks_and_none_if_it_has_loaded_none(
    machine: Machine, tmp_path: Path
) -> None:
    machine.cri[SOCKET].info = {"cniconfig": cniconfig(BRIDGE)}
    for wired in (
        machine.wire("containerd", SOCKET),
        machine.wire("containerd crio dockerd", SOCKET, CRIO, kubelet=f"unix://{SOCKET}"),
    ):
        assert read(wired.snapshot, "networks").known() == CBR0
    none = json.dumps(json.loads(cniconfig()) | {"Networks": [], "PluginConfDir": str(tmp_path)})
    machine.cri[SOCKET].info = {"cniconfig": none, "lastCNILoadStatus": "cni config load failed"}
    machine.cri[SOCKET].network_not_ready = "cni plugin not initialized"
    wired = machine.wire("containerd", SOCKET)
    for file, text in (
        ("", ""),
        ("00-bad.conflist", '{"cniVersion": "1.0.0", "name": "zz", "plugins": []}'),
        ("10-cbr0.conflist", json.dumps({"name": "cbr0", "plugins": [BRIDGE]})),
    ):
        if file:
            (tmp_path / file).write_text(text)
        assert read(wired.snapshot, "networks").known() == (), "it loads all or nothing"
        assert read(wired.snapshot, "runtime_status").known() == RuntimeStatus(
            network_ready=False,
            reason="NetworkPluginNotReady",
            message="Network plugin returns error: cni plugin not initialized",
            load_error="cni config load failed",
        )
    # It hides none beside another one, where it is unknown which is the kubelet's.
    wired = machine.wire("containerd crio", SOCKET, CRIO, cni_config_dir=str(tmp_path))
    assert read(wired.snapshot, "networks").known() == CBR0


def test_the_directory_and_the_default_network_of_crio_and_the_directory_of_cri_dockerd_count(
    machine: Machine, tmp_path: Path
) -> None:
    for name in ("cbr0", "other"):
        (tmp_path / f"{len(name)}.conflist").write_text(
            json.dumps({"name": name, "plugins": [BRIDGE]})
        )
    configured, directory = (
        '[crio.network]\nnetwork_dir = "{}"\ncni_default_network = "{}"',
        str(tmp_path),
    )
    for where, default, found in (
        (directory, "", "cbr0"),
        (directory, "other", "other"),
        ("/nowhere", "", None),
    ):
        machine.servers[CRIO].http = http(configured.format(where, default))
        wired = machine.wire("crio", CRIO)
        if found:
            assert [network.name for network in read(wired.snapshot, "networks").known()] == [found]
        else:
            assert "/nowhere does not exist (it must be mounted" in why(wired, "networks")
    machine.servers[CRIO].http = http(configured.format(directory, "third"))
    assert f"third, is in no file of {directory}" in why(machine.wire("crio", CRIO), "networks")
    wired = machine.wire(
        "dockerd cri-dockerd cri-dockerd", DOCKERS, kubelet="unix:///run/cri-dockerd.sock"
    )
    machine.process(9, "cri-dockerd", "--cni-conf-dir", directory)
    assert read(wired.snapshot, "networks").known() == CBR0
    machine.process(10, "cri-dockerd", "--cni-conf-dir=/else")
    assert "--cni-conf-dir of the kubelet and cri-dockerd differ" in why(wired, "networks")


def test_crio_skips_a_file_that_names_a_plugin_without_a_program_as_far_as_that_is_known(
    machine: Machine, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    for name, plugin in (("05-weave", {"type": "weave-net"}), ("10-cbr0", BRIDGE)):
        tree = {"name": name.partition("-")[2], "plugins": [plugin]}
        (tmp_path / f"{name}.conflist").write_text(json.dumps(tree))
    config = '[crio.network]\nnetwork_dir = "{}"\nplugin_dirs = ["{}"]'
    machine.servers[CRIO].http = http(config.format(tmp_path, programs))

    def found() -> list[str]:
        wired = machine.wire("crio", CRIO)
        return [network.name for network in read(wired.snapshot, "networks").known()]

    assert found() == ["weave"]
    (machine.proc / "1/ns").mkdir()
    (machine.proc / "1/ns/mnt").symlink_to("/proc/self/ns/mnt")
    assert found() == ["weave"], "the plugins are elsewhere"
    programs.mkdir()
    (programs / "bridge").touch(0o755)
    assert found() == ["cbr0"]
    (programs / "bridge").unlink()
    wired = machine.wire("crio", CRIO)
    assert "names a plugin that is not installed" in why(wired, "networks")
    machine.cri[CRIO].network_not_ready = "no CNI configuration file"
    assert found() == [], "it says so itself"


def test_the_status_of_the_runtime_costs_a_call_only_where_cri_dockerd_has_it(
    machine: Machine, tmp_path: Path
) -> None:
    (tmp_path / "10-cbr0.conflist").write_text(json.dumps({"name": "cbr0", "plugins": [BRIDGE]}))
    ready, none = RuntimeStatus(network_ready=True), RuntimeStatus(network_ready=None)
    machine.cri[SOCKET].info = {"cniconfig": cniconfig(BRIDGE), "lastCNILoadStatus": "OK"}
    wired = machine.wire("containerd", SOCKET)
    read(wired.snapshot, "networks")
    machine.connections()
    assert read(wired.snapshot, "runtime_status").known() == ready
    assert machine.connections() == {}
    # Of two runtimes it is not known which is the kubelet's.
    wired = machine.wire("containerd crio", SOCKET, CRIO, cni_config_dir=str(tmp_path))
    read(wired.snapshot, "networks")
    assert isinstance(read(wired.snapshot, "runtime_status"), NotRequested)
    # A runtime that does not answer has no status.
    machine.servers[CRIO].http = b""
    wired = machine.wire("crio", CRIO)
    read(wired.snapshot, "networks")
    assert "GET /config" in why(wired, "runtime_status")

    docker = {"kubelet": "unix:///run/cri-dockerd.sock", "cni_config_dir": str(tmp_path)}
    wired = machine.wire("dockerd cri-dockerd", DOCKERS, **docker)
    assert read(wired.snapshot, "networks").known() == CBR0
    assert read(wired.snapshot, "runtime_status").known() == none, "dockershim has none"
    shim = FakeRuntime(name="docker", network_not_ready="cni config uninitialized")
    with FakeGrpcServer(machine.run_dir / "cri-dockerd.sock", shim.answer) as server:
        assert read(wired.snapshot, "networks").known() == CBR0
        assert server.connections == 0
        found = read(wired.snapshot, "runtime_status").known()
        assert (found.network_ready, found.reason) == (False, "NetworkPluginNotReady")
        assert server.connections == 1


def test_the_networks_of_runtime_classes_are_networks_of_the_node(
    machine: Machine, tmp_path: Path
) -> None:
    def with_class(directory: Path) -> Any:
        config = {
            "containerd": {
                "runtimes": {"alt": {"cniConfDir": str(directory)}, "runc": {"cniConfDir": ""}}
            }
        }
        machine.cri[SOCKET].info = {"cniconfig": cniconfig(BRIDGE), "config": json.dumps(config)}
        return machine.wire("containerd", SOCKET)

    assert "alt.d does not exist " in why(with_class(Path("/nowhere/alt.d")), "networks")
    alt = tmp_path / "alt.d"
    alt.mkdir()
    wired = with_class(alt)
    assert read(wired.snapshot, "networks").known() == CBR0, "no pod of the class can start"
    (alt / "09-bad.conflist").write_text("{")
    (alt / "10-alt.conflist").write_text(json.dumps({"name": "alt", "plugins": [BRIDGE]}))
    assert read(wired.snapshot, "networks").known() == CBR0, "it loads nothing"
    (alt / "09-bad.conflist").unlink()
    assert [one.name for one in read(wired.snapshot, "networks").known()] == ["cbr0", "alt"]
