"""Which container runtimes are asked: the process table and the list of sockets are files, the runtimes are objects."""

import json
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agent.model.runtime import CONTAINERD, CRI_O, DOCKER, ContainerRuntime, RuntimeNetwork
from agent.model.snapshot import Container
from agent.sources.host.cni_config import CniStatus
from agent.sources.host.processes import ProcessTable
from agent.sources.runtime.node_runtimes import NodeRuntimes
from agent.sources.runtime.runtime import NoCri
from agent.sources.source_error import SourceError
from tests.builders import DB_ID, WEB_ID, node, sandbox
from tests.fakes.host import write_sockets

SOCKET = "/run/containerd/containerd.sock"
CRIO_SOCKET = "/run/crio/crio.sock"


SILENT = CniStatus()


@dataclass
class Fake:
    """A runtime that lists these sandboxes, and has records of some more."""

    expected: ContainerRuntime
    listed: tuple[Container, ...] = ()
    recorded: tuple[Container, ...] = ()
    named: CniStatus = SILENT
    error: SourceError | None = None
    require: Callable[[], None] = lambda: None
    asked: list[set[str]] = field(default_factory=list)

    def identify(self) -> ContainerRuntime:
        self._answer()
        return replace(self.expected, version="1.7.24")

    def containers(self, asked: Collection[str]) -> tuple[Container, ...]:
        self._answer()
        self.asked.append(set(asked))
        return (*self.listed, *(one for one in self.recorded if one.id in asked))

    def has(self, container_id: str) -> bool:
        self._answer()
        return any(one.id == container_id for one in (*self.listed, *self.recorded))

    def networks(self) -> CniStatus:
        self._answer()
        return self.named

    def _answer(self) -> None:
        self.require()
        if self.error:
            raise self.error


@dataclass
class Machine:
    """A node's processes and sockets, and what its runtimes answer."""

    proc: Path
    docker: Fake = field(default_factory=lambda: Fake(ContainerRuntime(DOCKER)))
    cri: dict[str, Fake] = field(default_factory=dict)

    def run(self, *commands: str, listening: Collection[str] = (), kubelet: str = "") -> None:
        (self.proc / "sys/kernel/random").mkdir(parents=True)
        (self.proc / "sys/kernel/random/boot_id").write_text("b-1\n")
        (self.proc / "stat").write_text("btime 1700000000\n")
        write_sockets(self.proc, *listening)
        for pid, command in enumerate(("kubelet", *commands), 7):
            (self.proc / f"{pid}").mkdir()
            (self.proc / f"{pid}/stat").write_text(f"{pid} ({command}) S {'0 ' * 18}50 0\n")
            words = [command, f"--container-runtime-endpoint={kubelet}"] if kubelet else [command]
            (self.proc / f"{pid}/cmdline").write_text("".join(f"{word}\0" for word in words))

    def serve(self, socket: str, name: str = CONTAINERD, **answers: object) -> Fake:
        fake = Fake(ContainerRuntime(name, "", socket), **answers)  # type: ignore[arg-type]
        self.cri[socket] = fake
        return fake

    def runtimes(self, choice: str = "auto", endpoint: str = "", processes: ProcessTable | None = None) -> NodeRuntimes:
        def connect(path: Path, require: Callable[[], None]) -> Fake:
            fake = self.cri.setdefault(str(path), Fake(ContainerRuntime("cri", "", str(path))))
            fake.require = require
            return fake

        return NodeRuntimes(
            lambda: self.docker,
            connect,
            processes or ProcessTable(self.proc),
            self.proc,
            choice=choice,
            endpoint=Path(endpoint) if endpoint else None,
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "proc")


def asked(runtimes: NodeRuntimes) -> list[tuple[str, str]]:
    runtimes.containers(node())
    return [(one.name, one.endpoint) for one in runtimes.asked]


def test_a_node_of_docker_asks_docker_alone(machine: Machine) -> None:
    machine.run("dockerd", "containerd", listening=["/run/docker.sock", SOCKET], kubelet="unix:///run/cri-dockerd.sock")
    assert asked(machine.runtimes()) == [(DOCKER, "")]
    assert machine.cri == {}


@pytest.mark.parametrize("named", ["", f"unix://{SOCKET}"])
def test_a_node_of_containerd_asks_containerd_alone(machine: Machine, named: str) -> None:
    machine.serve(SOCKET)
    machine.run("containerd", listening=[SOCKET], kubelet=named)
    runtimes = machine.runtimes()
    unasked = runtimes.asks_docker
    assert asked(runtimes) == [(CONTAINERD, SOCKET)]
    assert (unasked, runtimes.asks_docker) == (True, False)
    assert machine.docker.asked == []


def test_two_runtimes_that_run_are_both_asked(machine: Machine) -> None:
    containerd = machine.serve(SOCKET, listed=(sandbox(WEB_ID, "shop/web"),))
    machine.docker.listed = (sandbox("d" * 64, "ci/job"),)
    machine.run("dockerd", "containerd", listening=["/var/run/docker.sock", SOCKET], kubelet=f"unix://{SOCKET}")
    runtimes = machine.runtimes()
    assert {one.id for one in runtimes.containers(node())} == {WEB_ID, "d" * 64}
    assert [one.name for one in runtimes.asked] == [CONTAINERD, DOCKER]
    assert (containerd.asked, machine.docker.asked) == ([{WEB_ID, DB_ID}], [{DB_ID}])
    assert runtimes.has("d" * 64)
    assert not runtimes.has("e" * 64)


def test_the_endpoint_of_the_kubelet_is_found_under_both_of_its_names(machine: Machine) -> None:
    machine.serve(CRIO_SOCKET, CRI_O)
    machine.run("crio", listening=["/var/run/crio/crio.sock"], kubelet="unix:///var/run/crio/crio.sock")
    assert asked(machine.runtimes()) == [(CRI_O, CRIO_SOCKET)]


def test_a_record_that_is_not_listed_is_found(machine: Machine) -> None:
    starting = replace(sandbox(DB_ID, "shop/db"), state="being created")
    machine.serve(SOCKET, listed=(sandbox(WEB_ID, "shop/web"),), recorded=(starting,))
    machine.run("containerd", listening=[SOCKET])
    assert starting in machine.runtimes().containers(node())
    assert machine.runtimes().has(DB_ID)


def test_a_containerd_without_cri_is_no_runtime(machine: Machine) -> None:
    machine.serve(SOCKET, error=NoCri("unknown service runtime.v1.RuntimeService"))
    machine.run("dockerd", "containerd", listening=["/run/docker.sock", SOCKET])
    assert asked(machine.runtimes()) == [(DOCKER, "")]
    assert not machine.runtimes().has(WEB_ID)


@pytest.mark.parametrize(("named", "endpoint"), [(f"unix://{SOCKET}", ""), ("", SOCKET)], ids=["kubelet", "option"])
def test_an_endpoint_that_was_named_must_serve_cri(machine: Machine, named: str, endpoint: str) -> None:
    machine.serve(SOCKET, error=NoCri("CRI is disabled here, or failed to start"))
    machine.run("dockerd", "containerd", listening=["/run/docker.sock", SOCKET], kubelet=named)
    runtimes = machine.runtimes(endpoint=endpoint)
    questions: list[Callable[[], object]] = [lambda: runtimes.containers(node()), lambda: runtimes.has(WEB_ID)]
    for question in [*questions, runtimes.networks] if named else questions:
        with pytest.raises(SourceError, match="CRI is disabled here") as raised:
            question()
        assert not isinstance(raised.value, NoCri)
    assert runtimes.asked == (ContainerRuntime(CONTAINERD, "", SOCKET, chosen=bool(endpoint)),)
    assert machine.docker.asked == []


@pytest.mark.parametrize("gone", ["socket", "CRI"])
def test_only_the_runtimes_of_the_list_can_deny_a_container(machine: Machine, gone: str) -> None:
    containerd = machine.serve(SOCKET)
    machine.run("dockerd", "containerd", listening=["/run/docker.sock", SOCKET])
    runtimes = machine.runtimes()
    runtimes.containers(node())
    assert not runtimes.has(WEB_ID)
    if gone == "CRI":
        containerd.error = NoCri("CRI failed to start")
    else:
        write_sockets(machine.proc, "/run/docker.sock")
    with pytest.raises(SourceError, match=r"containerd 1\.7\.24 no longer serves its socket"):
        runtimes.has(WEB_ID)
    machine.docker.listed = (sandbox(WEB_ID, "shop/web"),)
    assert runtimes.has(WEB_ID)


def test_a_runtime_that_runs_and_fails_makes_the_list_unavailable(machine: Machine) -> None:
    machine.serve(SOCKET, error=SourceError("server is not initialized yet"))
    machine.run("dockerd", "containerd", listening=["/run/docker.sock", SOCKET])
    runtimes = machine.runtimes()
    with pytest.raises(SourceError, match="server is not initialized yet"):
        runtimes.containers(node())
    assert runtimes.asked == (ContainerRuntime(CONTAINERD, "", SOCKET),)
    with pytest.raises(SourceError, match="server is not initialized yet"):
        runtimes.has(WEB_ID)


@pytest.mark.parametrize(
    ("commands", "listening"),
    [((), (SOCKET,)), (("containerd",), ()), (("dockerd",), (SOCKET, "/run/docker.sock"))],
    ids=["systemd listens in its place", "it does not listen yet", "another runtime runs"],
)
def test_a_stopped_runtime_of_the_kubelet_is_not_connected_to(
    machine: Machine, commands: tuple[str, ...], listening: tuple[str, ...]
) -> None:
    machine.run(*commands, listening=listening, kubelet=f"unix://{SOCKET}")
    with pytest.raises(SourceError, match=f"no container runtime listens at {SOCKET} on this node, so it was not"):
        machine.runtimes().containers(node())


def searches(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the directories that are listed from now on."""
    searched, list_directory = list[Path](), os.listdir

    def listdir(path: Path) -> list[str]:
        searched.append(path)
        return list_directory(path)

    monkeypatch.setattr(os, "listdir", listdir)
    return searched


def test_docker_alone_is_known_without_a_search(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.run("dockerd", listening=["/run/docker.sock"])
    processes = ProcessTable(machine.proc)
    processes.read()
    runtimes, searched = machine.runtimes(processes=processes), searches(monkeypatch)
    assert asked(runtimes) == [(DOCKER, "")]
    assert not runtimes.has(WEB_ID)
    assert searched == []


def test_stopped_runtimes_are_looked_for_once_a_snapshot(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.serve(SOCKET, named=LOADED)
    machine.run("containerd", listening=["/run/docker.sock", CRIO_SOCKET, SOCKET], kubelet=f"unix://{SOCKET}")
    processes = ProcessTable(machine.proc)
    processes.read()
    runtimes, searched = machine.runtimes(processes=processes), searches(monkeypatch)
    for number in range(1, 4):
        runtimes.networks()
        assert asked(runtimes) == [(CONTAINERD, SOCKET)]
        processes.read(complete=False)
        assert searched == [machine.proc] * number
    (machine.proc / "9").mkdir()
    (machine.proc / "9/stat").write_text(f"9 (dockerd) S {'0 ' * 18}50 0\n")
    machine.docker.listed = (sandbox(WEB_ID, "shop/web"),)
    assert runtimes.has(WEB_ID), "a recheck looks anew"
    runtimes.networks()
    assert asked(runtimes) == [(CONTAINERD, SOCKET), (DOCKER, "")]


def test_a_socket_of_a_runtime_that_does_not_run_is_absent(machine: Machine) -> None:
    machine.run("dockerd", listening=["/run/docker.sock", SOCKET])
    assert asked(machine.runtimes()) == [(DOCKER, "")]
    assert machine.cri == {}


@pytest.mark.parametrize(
    ("commands", "kubelet", "choice", "why"),
    [
        ((), "", "auto", "no container runtime runs on this node (no containerd or "),
        ((), "", "docker", "docker does not run on this node"),
        ((), "unix:///run/cri-dockerd.sock", "auto", "docker does not run on this node"),
        (("containerd",), "", "auto", "docker does not run on this node"),
    ],
    ids=["nothing is known", "docker was chosen", "the kubelet names docker", "another one runs"],
)
def test_without_an_answer_of_any_runtime_docker_says_why_unless_nothing_runs(
    machine: Machine, commands: tuple[str, ...], kubelet: str, choice: str, why: str
) -> None:
    machine.docker.error = SourceError("docker does not run on this node")
    machine.run(*commands, kubelet=kubelet)
    runtimes = machine.runtimes(choice)
    for question in (lambda: runtimes.containers(node()), lambda: runtimes.has(WEB_ID)):
        with pytest.raises(SourceError) as raised:
            question()
        assert str(raised.value).startswith(why)


def test_nothing_is_asked_where_it_is_unknown_what_runs(machine: Machine) -> None:
    machine.run("dockerd", "containerd", listening=["/run/docker.sock", SOCKET])
    (machine.proc / "1/net/unix").unlink()
    with pytest.raises(SourceError, match=f"cannot read {machine.proc}/1/net/unix"):
        machine.runtimes().containers(node())
    assert machine.docker.asked == []


def test_a_choice_overrides_the_evidence(machine: Machine) -> None:
    machine.serve(SOCKET)
    machine.serve("/run/mine.sock", "mine")
    machine.run("dockerd", "containerd", listening=["/run/docker.sock", SOCKET, "/run/mine.sock"])
    assert asked(machine.runtimes("docker")) == [(DOCKER, "")]
    assert asked(machine.runtimes("cri")) == [(CONTAINERD, SOCKET)]
    assert asked(machine.runtimes("cri", "/run/mine.sock")) == [("mine", "/run/mine.sock")]
    assert asked(machine.runtimes("auto", "/var/run/mine.sock")) == [("mine", "/run/mine.sock"), (DOCKER, "")]


def test_only_the_endpoint_of_the_option_is_chosen(machine: Machine) -> None:
    machine.serve(SOCKET)
    machine.run("dockerd", "containerd", listening=["/run/docker.sock", SOCKET])
    for endpoint, expected in (("", [False, False]), (f"/var{SOCKET}", [True, False])):
        runtimes = machine.runtimes(endpoint=endpoint)
        runtimes.containers(node())
        assert [(one.name, one.chosen) for one in runtimes.asked] == [*zip((CONTAINERD, DOCKER), expected, strict=True)]


def test_a_choice_of_cri_is_no_question_to_docker(machine: Machine) -> None:
    machine.serve(SOCKET, error=NoCri("no CRI"))
    machine.run("dockerd", "containerd", listening=["/run/docker.sock"])
    with pytest.raises(SourceError, match="set --cri-endpoint"):
        machine.runtimes("cri").containers(node())
    write_sockets(machine.proc, SOCKET)
    with pytest.raises(SourceError, match="serves CRI"):
        machine.runtimes("cri").containers(node())
    assert machine.docker.asked == []


# networks

LOADED = CniStatus(({"name": "cbr0", "plugins": [{"type": "flannel"}]},))
CBR0 = (RuntimeNetwork("cbr0", ("flannel",), "host-local"),)


def test_the_runtime_that_the_kubelet_names_names_the_networks(machine: Machine) -> None:
    machine.run("containerd", "crio", "dockerd", listening=(SOCKET, CRIO_SOCKET), kubelet=f"unix://{SOCKET}")
    machine.serve(CRIO_SOCKET, CRI_O)
    machine.serve(SOCKET, named=LOADED)
    assert machine.runtimes().networks() == CBR0


def test_a_runtime_alone_names_the_networks(machine: Machine) -> None:
    machine.run("containerd", listening=(SOCKET,))
    machine.serve(SOCKET, named=LOADED)
    assert machine.runtimes().networks() == CBR0


def test_a_runtime_that_has_loaded_no_network_hides_none(machine: Machine, tmp_path: Path) -> None:
    """It cannot read the first file, and pods have addresses by another one."""
    machine.run("containerd", listening=(SOCKET,))
    machine.serve(SOCKET, named=CniStatus((), tmp_path))
    with pytest.raises(SourceError, match="has no CNI configuration"):
        machine.runtimes().networks()
    (tmp_path / "00-bad.conflist").write_text('{"cniVersion": "1.0.0", "name": "zz", "plugins": []}')
    with pytest.raises(SourceError, match=r"00-bad\.conflist"):
        machine.runtimes().networks()
    (tmp_path / "10-cbr0.conflist").write_text(json.dumps(LOADED.loaded[0] if LOADED.loaded else None))
    assert machine.runtimes().networks() == CBR0


def test_the_networks_of_runtime_classes_are_networks_of_the_node(machine: Machine, tmp_path: Path) -> None:
    machine.run("containerd", listening=(SOCKET,))
    machine.serve(SOCKET, named=LOADED._replace(others=(Path("/nowhere/alt.d"),)))
    with pytest.raises(SourceError, match=r"alt\.d does not exist .*must be mounted"):
        machine.runtimes().networks()
    machine.serve(SOCKET, named=LOADED._replace(others=(tmp_path / "alt.d",)))
    (tmp_path / "alt.d").mkdir()
    assert machine.runtimes().networks() == CBR0, "no pod of the class can start"
    (tmp_path / "alt.d/09-bad.conflist").write_text("{")
    with pytest.raises(SourceError, match=r"no file in .*alt\.d is a CNI configuration"):
        machine.runtimes().networks()
    (tmp_path / "alt.d/10-alt.conflist").write_text('{"name": "alt", "plugins": [{"type": "flannel"}]}')
    assert [one.name for one in machine.runtimes().networks()] == ["cbr0", "alt"]


@pytest.mark.parametrize(
    ("processes", "sockets"),
    [
        (("crio",), (CRIO_SOCKET,)),
        (("containerd", "crio"), (SOCKET, CRIO_SOCKET)),
    ],
    ids=["CRI-O", "several"],
)
def test_where_no_runtime_names_the_networks_the_configuration_does(
    machine: Machine, tmp_path: Path, processes: tuple[str, ...], sockets: tuple[str, ...]
) -> None:
    machine.run(*processes, listening=sockets)
    for socket in sockets:
        machine.serve(socket, CRI_O if socket == CRIO_SOCKET else CONTAINERD)
    net_d = tmp_path / "net.d"
    for how in ("does not exist", "has no CNI configuration"):
        with pytest.raises(SourceError, match=f"{net_d} {how} .*--cni-config-dir"):
            machine.runtimes().networks(net_d)
        net_d.mkdir(exist_ok=True)
    (net_d / "10-x.conflist").write_text(json.dumps(LOADED.loaded[0] if LOADED.loaded else None))
    assert machine.runtimes().networks(net_d) == CBR0


def test_a_runtime_that_fails_makes_the_networks_unavailable(machine: Machine) -> None:
    machine.run("containerd", listening=(SOCKET,), kubelet=f"unix://{SOCKET}")
    machine.serve(SOCKET, error=SourceError("no answer"))
    with pytest.raises(SourceError, match="no answer"):
        machine.runtimes().networks()


def test_the_networks_of_a_stopped_runtime_of_the_kubelet_are_unavailable(machine: Machine) -> None:
    machine.run("crio", listening=(CRIO_SOCKET,), kubelet=f"unix://{SOCKET}")
    machine.serve(CRIO_SOCKET, CRI_O, named=LOADED)
    with pytest.raises(SourceError, match="no container runtime listens"):
        machine.runtimes().networks()
