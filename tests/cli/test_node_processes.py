"""What only the processes of a node tell: whose pods these are, what restarted, and whether docker may be asked."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import AGENT, Done, environment, nodeleak
from tests.cli.test_clean import Incident
from tests.fakes.apiserver import apiserver
from tests.fakes.engine import engine
from tests.fakes.host import build, write_kubeconfig, write_sockets
from tests.fakes.nodes import FakeNode, the_incident
from tests.wire import ID, Answer, FakeServer, Request, http, kubeconfig, needs

CI = {"Id": "c" * 64, "State": "running", "Created": 1_700_000_000, "Labels": {"ci": "job 7"}}
SOCKET = "/run/containerd/containerd.sock"
CONTAINERD = f"unix://{SOCKET}"
CRI_DOCKERD = "--container-runtime-endpoint=unix:///var/run/cri-dockerd.sock"
KUBENET = "--network-plugin=kubenet"
CLEAN = ("clean", "--apply", "--cleanup-network=auto", "--max-share=100%")
NETWORK = '{"name": "kubenet", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"}}'
RESERVED = {f"10.244.1.{last}": f"{last}" * 64 for last in range(2, 9)}
SEEN = "10.244.1.2"
"""The one address that a process has on an interface."""


def labelled(container_id: str, pod: str, state: str = "running") -> dict[str, Any]:
    labels = {"pod.name": pod, "pod.namespace": "shop", "docker.type": "podsandbox"}
    return {
        "Id": container_id,
        "State": state,
        "Created": 1_700_000_000,
        "Labels": {f"io.kubernetes.{name}": value for name, value in labels.items()},
    }


@dataclass
class Node:
    """Seven reservations, none of whose sandboxes docker lists."""

    home: Path
    engine: FakeServer
    listed: list[dict[str, Any]] = field(default_factory=lambda: [CI])

    @property
    def store(self) -> Path:
        return self.home / "networks/kubenet"

    @property
    def checkpoints(self) -> Path:
        return self.home / "dockershim/sandbox"

    def build(self) -> None:
        for directory in (self.store, self.home / "cache", self.home / "proc/sys/kernel/random"):
            directory.mkdir(parents=True)
        for ip, container_id in RESERVED.items():
            (self.store / ip).write_text(f"{container_id}\r\neth0")
            os.utime(self.store / ip, (1_700_000_000, 1_700_000_000))
        (self.home / "cache" / f"kubenet-{ID}-eth0").write_text(json.dumps({"ip4": {"ip": "10.244.1.2/24"}}))
        (self.home / "net.d").mkdir()
        (self.home / "net.d/10-kubenet.conf").write_text(NETWORK)  # for a docker with CNI
        (self.home / "proc/sys/kernel/random/boot_id").write_text("b-1\n")
        (self.home / "proc/stat").write_text("btime 1700000000\n")
        write_sockets(self.home / "proc")
        self.process(7, "dockerd", "/usr/bin/dockerd")

    def process(self, pid: int, command: str, *words: str, ip: str = "10.244.1.1", ago: int | None = None) -> None:
        """Write a process that started so many seconds ago; None: long ago."""
        now = time.time()  # noqa: TID251 (the agent is a process, and reads the real clock)
        start = 50 if ago is None else int((now - 1_700_000_000 - ago) * os.sysconf("SC_CLK_TCK"))
        directory = self.home / f"proc/{pid}"
        (directory / f"task/{pid}/net").mkdir(parents=True)
        (directory / f"task/{pid}/net/fib_trie").write_text(f"Main:\n  |-- {ip}\n     /32 host LOCAL\n")
        (directory / "stat").write_text(f"{pid} ({command}) S {'0 ' * 18}{start} 0\n")
        (directory / "comm").write_text(f"{command}\n")
        (directory / "mountinfo").touch()
        (directory / "cmdline").write_text("".join(f"{word}\0" for word in words))
        (directory / "root").symlink_to(self.home)

    def kubelet(self, *flags: str) -> None:
        self.process(8, "kubelet", "/usr/bin/kubelet", *flags)

    def server(self, request: Request) -> Answer:
        if request.path == "/version":
            return [http('{"ApiVersion": "1.41"}')]
        if request.path.endswith("/containers/json"):
            return [http(json.dumps(self.listed))]
        asked = request.path.split("/")[-2]
        return [http(json.dumps({"message": f"No such container: {asked}"}), "404 Not Found")]

    @property
    def options(self) -> list[str]:
        return [
            *("--device-plugins-dir=off", "--kubelet-dir=off", f"--state-dir={self.home}/state"),
            *(f"--cni-networks-dir={self.home}/networks", f"--cni-cache-dir={self.home}/cache"),
            *(f"--checkpoint-dir={self.checkpoints}", f"--docker-host={self.engine.url}", f"--proc={self.home}/proc"),
            *(f"--cni-config-dir={self.home}/net.d", "--confirm-after=1ms"),
        ]

    def clean(self, *arguments: str, api: tuple[str, ...] = ("--api=off",)) -> Done:
        return nodeleak(*CLEAN, *api, *self.options, *arguments)

    def scan(self, *api: str) -> Any:
        return json.loads(nodeleak("scan", "-o", "json", *(api or ("--api=off",)), *self.options).out)

    @property
    def reserved(self) -> set[str]:
        return {path.name for path in self.store.iterdir() if path.name != "lock"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with FakeServer(lambda _: [], at=tmp_path / "docker.sock") as docker:
        node = Node(tmp_path, docker)
        docker.answers = node.server
        node.build()
        yield node


def api_server(node: Node, runtime: str) -> FakeServer:
    worker = {
        "metadata": {"name": "worker-1", "uid": "n", "resourceVersion": "4"},
        "spec": {"podCIDR": "10.244.1.0/24", "providerID": "fake:///1"},
        "status": {"nodeInfo": {"containerRuntimeVersion": runtime}},
    }

    def answers(request: Request) -> Answer:
        items = [] if "pods" in request.path else [worker]
        return [http(json.dumps({"metadata": {"resourceVersion": "5"}, "items": items}))]

    server = FakeServer(answers)
    kubeconfig(node.home / "kubeconfig", server.url)
    return server


def credentials(node: Node) -> tuple[str, str]:
    return "--node=worker-1", f"--kubeconfig={node.home}/kubeconfig"


def assert_nothing_is_concluded(node: Node, *api: str) -> Any:
    """No release, no leak, and no advice to end the processes of somebody's pods."""
    node.process(90, "pause", "/pause", ip=SEEN)
    done = node.clean(api=api or ("--api=off",))
    assert node.reserved == set(RESERVED), done.out
    document = node.scan(*api)
    assert {one["state"] for one in document["reservations"]} == {"unknown"}
    assert document["findings"] == []
    return document


# Another runtime's pods


def assert_another_runtime_is_missed(node: Node, socket: str = SOCKET) -> None:
    """The runtime of the kubelet must answer, unless only docker was to be asked."""
    why = f"no container runtime listens at {socket} on this node, so it was not asked"
    missing = assert_nothing_is_concluded(node)["unavailable"]
    assert missing == [{"source": source, "why": why} for source in ("containers", "networks")]
    only_docker = node.scan("--api=off", "--runtime=docker")
    assert only_docker["unavailable"] == []
    assert {one["why"] for one in only_docker["reservations"]} == {
        f"containers: the runtime of this node is {socket}, and it was not asked"
    }
    node.clean("--settle=0s", "--runtime=docker")
    assert node.reserved == set(RESERVED)


@pytest.mark.parametrize(
    "flags",
    [
        ["--container-runtime=remote", f"--container-runtime-endpoint={CONTAINERD}"],
        [KUBENET, "--container-runtime-endpoint=unix:///run/docker/containerd/docker-containerd.sock"],
    ],
    ids=["containerd", "docker's own containerd"],
)
def test_a_kubelet_that_names_another_runtime(node: Node, flags: list[str]) -> None:
    node.checkpoints.mkdir(parents=True)  # left over
    node.kubelet(*flags)
    assert_another_runtime_is_missed(node, flags[-1].partition("unix://")[2])


def test_a_kubelet_that_names_another_runtime_has_no_checkpoint_directory(node: Node) -> None:
    node.kubelet(f"--container-runtime-endpoint={CONTAINERD}")
    assert_another_runtime_is_missed(node)


def test_a_configuration_file_that_names_another_runtime(node: Node) -> None:
    (node.home / "var").mkdir()
    (node.home / "var/config.yaml").write_text(f"kind: X\ncontainerRuntimeEndpoint: {CONTAINERD}\n")
    node.checkpoints.mkdir(parents=True)
    node.kubelet("--config=/var/config.yaml")
    assert_another_runtime_is_missed(node)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("kubelet", ["/usr/bin/kubelet", "--config=/var/missing.yaml"]),
        ("k3s-server", ["/usr/local/bin/k3s", "server"]),
        ("kubelite", ["/snap/microk8s/1/kubelite", "--kubelet-args-file=/var/snap/args/kubelet"]),
    ],
    ids=lambda one: one if isinstance(one, str) else one[-1],
)
def test_a_kubelet_that_names_no_runtime(node: Node, command: str, words: list[str]) -> None:
    node.checkpoints.mkdir(parents=True)  # left over
    node.listed.append(labelled("e" * 64, "before-the-migration", "exited"))
    node.process(8, command, *words)
    why = {one["source"]: one["why"] for one in assert_nothing_is_concluded(node)["unavailable"]}
    assert "the pods of this node may belong to another one" in why["containers"]


@pytest.mark.parametrize("runtime", ["docker://20.10.24", "containerd://1.7.24"])
def test_without_checkpoint_directory_and_sandboxes_the_node_object_does_not_help(node: Node, runtime: str) -> None:
    with api_server(node, runtime):
        assert_nothing_is_concluded(node, *credentials(node))


def test_without_a_kubelet_and_a_checkpoint_directory_docker_is_not_named(node: Node) -> None:
    assert_nothing_is_concluded(node)


@pytest.mark.parametrize(
    ("flags", "runtime"),
    [
        ([f"--container-runtime-endpoint={CONTAINERD}"], "docker://20.10.24"),
        ([KUBENET], "containerd://1.7.24"),
    ],
    ids=["of an earlier kubelet", "of another kubelet"],
)
def test_a_node_object_that_contradicts_the_kubelet(node: Node, flags: list[str], runtime: str) -> None:
    node.checkpoints.mkdir(parents=True)
    node.kubelet(*flags)
    with api_server(node, runtime):
        document = assert_nothing_is_concluded(node, *credentials(node))
    assert (
        "it is unknown whose pods run here"
        in {one["source"]: one["why"] for one in document["unavailable"]}["containers"]
    )


def test_a_process_that_is_named_kubelet_does_not_hide_a_source_without_a_word(node: Node) -> None:
    node.checkpoints.mkdir(parents=True)
    node.kubelet(KUBENET)
    node.process(99, "kubelet", "/home/user/kubelet", "--container-runtime-endpoint=x")
    unavailable = {one["source"]: one for one in assert_nothing_is_concluded(node)["unavailable"]}
    assert unavailable.keys() == {"containers", "networks"}
    assert unavailable["containers"] == {
        "source": "containers",
        "why": "it is unknown whose pods run here: processes named kubelet name different runtimes, such as x",
    }
    assert nodeleak("scan", "--api=off", *node.options).code == 3


# Real processes, with network namespaces of their own

_SCRIPT = r"""
set -e
ip link set lo up
here=$1; shift
"$here/dockerd" -c 'import time; time.sleep(60)' &
"$here/kubelet" -c 'import time; time.sleep(60)' "$KUBELET_FLAG" &
# A sandbox whose runtime took the address off the interface, as gVisor does, and one that has it.
unshare --net "$here/runsc-sandbox" -c 'import time; time.sleep(60)' &
unshare --net sh -c 'ip address add 10.244.1.2/32 dev lo; ip link set lo up; exec "$0" -c "$1"' \
    "$here/pause" 'import time; time.sleep(60)' &
for name in dockerd kubelet runsc-sandbox pause; do
    for _ in $(seq 100); do grep -qsx "$name" /proc/[0-9]*/comm && break; sleep 0.05; done
done
"$@"
"""


def in_private_processes(node: Node, flag: str, *arguments: str) -> str:
    """Run the agent in a process table that has one kubelet, one dockerd and two sandboxes, all of them real."""
    needs(os.geteuid() == 0 and bool(shutil.which("unshare")) and bool(shutil.which("ip")), "root, unshare and ip")
    for name in ("dockerd", "kubelet", "runsc-sandbox", "pause"):
        if not (node.home / name).exists():
            (node.home / name).symlink_to(sys.executable)
    command = ["unshare", "--pid", "--net", "--fork", "--kill-child", "--mount-proc", "/bin/sh", "-c", _SCRIPT, "x"]
    done = subprocess.run(  # noqa: S603 (ours)
        [*command, str(node.home), *AGENT, *arguments, "--api=off", *node.options, "--proc=/proc"],
        env=environment({"KUBELET_FLAG": flag}), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done.stdout


def test_a_real_kubelet_of_containerd_beside_a_docker(node: Node) -> None:
    flag = f"--container-runtime-endpoint={CONTAINERD}"
    out = in_private_processes(node, flag, *CLEAN, "--settle=0s")
    assert node.reserved == set(RESERVED), out
    document = json.loads(in_private_processes(node, flag, "scan", "-o", "json"))
    assert {one["why"] for one in document["reservations"]} == {
        f"containers: no container runtime listens at {SOCKET} on this node, so it was not asked"
    }


def test_a_real_kubelet_of_docker_whose_sandboxes_all_leaked_but_one(node: Node) -> None:
    node.checkpoints.mkdir(parents=True)
    out = in_private_processes(node, KUBENET, *CLEAN, "--settle=0s")
    assert node.reserved == {SEEN}, out
    assert "process" in out


# Nothing is lost to caution


@pytest.mark.parametrize(
    "flags",
    [
        [KUBENET],
        [KUBENET, "--container-runtime=docker"],
        [KUBENET, "--container-runtime=docker", "--container-runtime-endpoint=unix:///var/run/kubelet-cri.sock"],
        [CRI_DOCKERD],
    ],
    ids=["kubenet", "docker", "dockershim on a socket of another name", "cri-dockerd"],
)
def test_a_node_on_which_every_reservation_leaked_is_diagnosed_and_cleaned(node: Node, flags: list[str]) -> None:
    node.checkpoints.mkdir(parents=True)
    node.kubelet(*flags)
    document = node.scan()
    assert {one["detector"] for one in document["findings"]} >= {"leaked_reservation"}
    assert {one["state"] for one in document["reservations"]} == {"leaked"}
    done = node.clean()
    assert "7 released" in done.out, done.out
    assert node.reserved == set()


def test_a_configuration_file_that_names_cri_dockerd(node: Node) -> None:
    node.checkpoints.mkdir(parents=True)
    (node.home / "config.yaml").write_text("containerRuntimeEndpoint: unix:///run/cri-dockerd.sock\n")
    node.kubelet("--config", "/config.yaml")
    assert "7 released" in node.clean().out


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "its command line is not readable"])
def test_where_the_kubelet_cannot_be_asked_its_checkpoint_directory_counts(node: Node, stopped: bool) -> None:
    node.checkpoints.mkdir(parents=True)
    node.kubelet(KUBENET)
    (node.home / "proc/8/cmdline").unlink()
    if stopped:
        (node.home / "proc/8/stat").unlink()
    assert "7 released" in node.clean("--settle=0s").out


def test_a_running_sandbox_of_the_nodes_network_shows_that_docker_is_the_runtime(node: Node) -> None:
    proxy = labelled("a" * 64, "kube-proxy")
    node.listed.append(proxy)
    node.checkpoints.mkdir(parents=True)
    (node.checkpoints / ("a" * 64)).write_text("{}")
    node.process(8, "k3s-server", "/usr/local/bin/k3s", "server")
    assert "7 released" in node.clean().out


def test_a_node_object_that_names_docker_counts_if_the_kubelet_names_no_runtime(node: Node) -> None:
    node.checkpoints.mkdir(parents=True)
    node.process(8, "k3s-server", "/usr/local/bin/k3s", "server")
    with api_server(node, "docker://20.10.24"):
        assert "7 released" in node.clean(api=credentials(node)).out


def test_a_drained_node_has_nothing_to_report(node: Node) -> None:
    for path in node.store.iterdir():
        path.unlink()
    node.kubelet(KUBENET)
    document = node.scan()
    assert (document["unavailable"], document["findings"], document["reservations"]) == ([], [], [])


def drained(incident: FakeNode) -> FakeNode:
    """Only pods of the node's own network are left, and the leaks."""
    return replace(incident, running=tuple(one for one in incident.running if not one.ip), pending=())


def at_its_worst(incident: FakeNode) -> FakeNode:
    """Every sandbox that reserved an address is gone, those of the node's network too."""
    return replace(incident, running=(), leaked=incident.reserved)


@pytest.mark.parametrize("api", ["on", "off"])
@pytest.mark.parametrize(("change", "released"), [(drained, 7), (at_its_worst, 125)])
def test_the_incident_is_diagnosed_and_cleaned(
    tmp_path: Path, api: str, change: Callable[[FakeNode], FakeNode], released: int
) -> None:
    fake = change(the_incident(datetime.now(UTC)))  # noqa: TID251 (a stand-in's files are as old as a real one's)
    host = build(tmp_path / "node", fake)
    incident = Incident(fake, host)
    with engine(host.docker_socket, fake), apiserver(fake) as server:
        write_kubeconfig(host, server)
        scan = nodeleak("scan", *incident.options(api))
        assert f"{released} leaked" in scan.out
        assert (scan.code, scan.err) == (0, "")
        done = incident.clean("--apply", "--max-share=100%", api=api)
    assert f"{released} released" in done.out, done.out
    assert incident.reserved == set()


# What restarted


@pytest.mark.parametrize(
    ("command", "words", "who"),
    [
        ("dockerd", ["/usr/bin/dockerd"], "docker"),
        ("kubelet", ["/usr/bin/kubelet", KUBENET], "the kubelet"),
        ("cri-dockerd", ["/usr/bin/cri-dockerd"], "cri-dockerd"),
    ],
)
def test_an_older_process_of_the_same_name_hides_no_restart(
    node: Node, command: str, words: list[str], who: str
) -> None:
    node.checkpoints.mkdir(parents=True)
    node.kubelet(KUBENET)
    node.process(99, command, *words, ago=20)
    done = node.clean()
    assert re.search(rf"unsettled .*{who} started [23]\d s ago, and --settle is 300 s$", done.out, re.MULTILINE), (
        done.out
    )
    assert "override with" not in done.out
    assert node.reserved == set(RESERVED)


@pytest.mark.parametrize(
    ("docker", "kubelet", "words"),
    [
        ("dockerd-current", "kubelet", ["/usr/bin/kubelet", KUBENET]),
        ("dockerd", "k3s-agent", ["/usr/local/bin/k3s", "agent", CRI_DOCKERD]),
    ],
)
def test_a_node_whose_daemons_have_other_names_is_cleaned(
    node: Node, docker: str, kubelet: str, words: list[str]
) -> None:
    node.checkpoints.mkdir(parents=True)
    (node.home / "proc/7/stat").write_text((node.home / "proc/7/stat").read_text().replace("dockerd", docker))
    node.process(8, kubelet, *words)
    assert "7 released" in node.clean().out


def test_a_kubelet_that_is_not_recognized_is_unsettled_and_no_setting_is_offered(node: Node) -> None:
    node.checkpoints.mkdir(parents=True)
    node.process(8, "my-kubelet", "/opt/my-kubelet", KUBENET)
    done = node.clean()
    assert "it is not known when the kubelet started: its process was not found\n" in done.out
    assert "override with" not in done.out
    assert node.reserved == set(RESERVED)


# Asking starts nothing: the socket of a stopped docker belongs to systemd, which starts it at the first connection


@pytest.mark.parametrize("there", ["kubelet", "containerd", "podman"])
@pytest.mark.parametrize("command", ["scan", "clean"])
def test_a_stopped_docker_is_not_asked(node: Node, there: str, command: str) -> None:
    (node.home / "proc/7/stat").unlink()
    node.kubelet(KUBENET)
    node.process(9, there, f"/usr/bin/{there}")
    done = nodeleak(command, "--api=off", *node.options)
    assert done.code == 3
    assert (
        f"docker does not run on this node (no dockerd or dockerd-current in {node.home}/proc)" in done.out + done.err
    )
    assert node.engine.requests == []


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_without_the_nodes_processes_docker_is_not_asked(node: Node, scheme: str) -> None:
    (node.home / "proc/7/stat").unlink()
    with FakeServer(node.server) as remote:
        where = node.engine.url if scheme == "unix" else remote.url.replace("http", "tcp")
        done = nodeleak("scan", "--api=off", *node.options, f"--docker-host={where}")
        assert remote.requests == node.engine.requests == []
    assert done.code == 3
    assert (
        "no container runtime was asked, because it is unknown which one runs: no kubelet and no container runtime in"
        in done.out
    )
    assert "set hostPID: true" in done.out


def test_off_a_node_the_headline_names_the_cause_and_no_directory(tmp_path: Path) -> None:
    away = {"cni-networks-dir", "checkpoint-dir", "cni-config-dir", "cni-cache-dir", "device-plugins-dir", "run-dir"}
    (tmp_path / "proc").mkdir()
    done = nodeleak("scan", "--api=off", f"--proc={tmp_path}/proc", *(f"--{name}={tmp_path}/{name}" for name in away))
    assert done.code == 3
    headline = done.out.splitlines()[1]
    assert f"no kubelet and no container runtime in {tmp_path}/proc" in headline
    assert "set hostPID: true" in headline


def test_a_docker_on_another_machine_is_not_asked(node: Node) -> None:
    (node.home / "proc/7/stat").unlink()
    node.kubelet(KUBENET)
    with FakeServer(node.server) as remote:
        done = nodeleak("scan", "--api=off", *node.options, f"--docker-host={remote.url.replace('http', 'tcp')}")
        assert remote.requests == []
    assert "docker does not run on this node" in done.out


def test_a_running_docker_is_asked_over_tcp(node: Node) -> None:
    node.checkpoints.mkdir(parents=True)
    node.kubelet(KUBENET)
    with FakeServer(node.server) as local:
        done = node.clean(f"--docker-host={local.url.replace('http', 'tcp')}")
    assert "7 released" in done.out
    assert node.engine.requests == []
