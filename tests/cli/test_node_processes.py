"""What only the processes of a node tell: whose pods these are, what restarted, and whether docker may be asked."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import CONTAINER, Done, SmallNode, api_server, docker, nodeleak
from tests.cli.test_clean import simulated
from tests.fakes.nodes import FakeNode
from tests.wire import Answer, FakeServer, Request, http

CI = {"Id": "c" * 64, "State": "running", "Created": 1_700_000_000, "Labels": {"ci": "job 7"}}
SOCKET = "/run/containerd/containerd.sock"
CONTAINERD = f"unix://{SOCKET}"
CRI_DOCKERD = "--container-runtime-endpoint=unix:///var/run/cri-dockerd.sock"
KUBENET = "--network-plugin=kubenet"
CLEAN = ("clean", "--apply", "--cleanup-network=auto", "--max-share=100%")
NETWORK = '{"name": "kubenet", "type": "bridge", "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"}}'
RESERVED = {f"10.244.1.{last}": f"{last}" * 64 for last in range(2, 9)}
SEEN = "10.244.1.2"  # The one address that a process has on an interface


@dataclass
class Node(SmallNode):
    """Seven reservations, none of whose sandboxes docker lists; no kubelet, and no directory of checkpoints."""

    reserved: Mapping[str, str] = field(default_factory=lambda: RESERVED)
    listed: list[dict[str, Any]] = field(default_factory=lambda: [CI])

    def __post_init__(self) -> None:
        super().__post_init__()
        shutil.rmtree(self.proc / "8")
        shutil.rmtree(self.checkpoints)
        (self.home / "networks/cbr0").rmdir()
        self.process(7, "dockerd", "/usr/bin/dockerd")
        (self.home / "net.d").mkdir()
        (self.home / "net.d/10-kubenet.conf").write_text(NETWORK)  # for a docker with CNI
        self.options += [
            "--device-plugins-dir=off",
            "--kubelet-dir=off",
            f"--cni-config-dir={self.home}/net.d",
        ]
        self.docker.answers = docker(self.listed)

    @property
    def checkpoints(self) -> Path:
        return self.home / "sandbox"

    @property
    def left(self) -> set[str]:
        return {
            path.name for path in (self.home / "networks/kubenet").iterdir() if path.name != "lock"
        }

    def kubelet(self, *flags: str) -> None:
        self.process(8, "kubelet", "/usr/bin/kubelet", *flags)

    def clean(self, *arguments: str, api: Sequence[str] = ("--api=off",)) -> Done:
        return nodeleak(*CLEAN, *api, *self.options, *arguments)

    def scan(self, *api: str) -> Any:
        return json.loads(
            nodeleak("scan", "-o", "json", *(api or ("--api=off",)), *self.options).out
        )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with FakeServer(lambda _: [], at=tmp_path / "docker.sock") as docker:
        yield Node(tmp_path, docker)


def naming(node: Node, runtime: str) -> AbstractContextManager[list[str]]:
    """Run an API server whose Node names this runtime; yield the options for it."""
    worker = {
        "metadata": {"name": "worker-1", "uid": "n", "resourceVersion": "4"},
        "spec": {"podCIDR": "10.244.1.0/24", "providerID": "fake:///1"},
        "status": {"nodeInfo": {"containerRuntimeVersion": runtime}},
    }

    def answers(request: Request) -> Answer:
        items = [] if "pods" in request.path else [worker]
        return [http(json.dumps({"metadata": {"resourceVersion": "5"}, "items": items}))]

    return api_server(node.home, answers)


def assert_nothing_is_concluded(node: Node, *api: str) -> Any:
    """No release, no leak, and no advice to end the processes of somebody's pods."""
    node.process(90, "pause", "/pause", ip=SEEN)
    done = node.clean(api=api or ("--api=off",))
    assert node.left == set(RESERVED), done.out
    document = node.scan(*api)
    assert {one["state"] for one in document["reservations"]} == {"unknown"}
    assert document["findings"] == []
    return document


# Another runtime's pods


def assert_another_runtime_is_missed(node: Node, socket: str = SOCKET) -> None:
    """The runtime of the kubelet must answer, unless only docker was to be asked."""
    why = f"no container runtime listens at {socket} on this node, so it was not asked"
    missing = assert_nothing_is_concluded(node)["unavailable"]
    sources = ("containers", "networks", "runtime_status")
    assert missing == [{"source": source, "why": why} for source in sources]
    only_docker = node.scan("--api=off", "--runtime=docker")
    assert only_docker["unavailable"] == []
    assert {one["why"] for one in only_docker["reservations"]} == {
        f"containers: the runtime of this node is {socket}, and it was not asked"
    }
    node.clean("--settle=0s", "--runtime=docker")
    assert node.left == set(RESERVED)


def test_a_kubelet_that_names_another_runtime(node: Node) -> None:
    node.kubelet(f"--container-runtime-endpoint={CONTAINERD}")
    assert_another_runtime_is_missed(node)
    node.checkpoints.mkdir()  # left over
    (node.home / "var").mkdir()
    (node.home / "var/config.yaml").write_text(f"kind: X\ncontainerRuntimeEndpoint: {CONTAINERD}\n")
    of_docker = "/run/docker/containerd/docker-containerd.sock"
    for flags, socket in (
        (("--container-runtime=remote", f"--container-runtime-endpoint={CONTAINERD}"), SOCKET),
        ((KUBENET, f"--container-runtime-endpoint=unix://{of_docker}"), of_docker),
        (("--config=/var/config.yaml",), SOCKET),
    ):
        node.kubelet(*flags)
        assert_another_runtime_is_missed(node, socket)


def test_a_kubelet_that_names_no_runtime(node: Node) -> None:
    node.checkpoints.mkdir()  # left over
    node.listed.append({**CONTAINER, "Id": "e" * 64, "State": "exited"})
    for command, *words in (
        ("kubelet", "/usr/bin/kubelet", "--config=/var/missing.yaml"),
        ("k3s-server", "/usr/local/bin/k3s", "server"),
        ("kubelite", "/snap/microk8s/1/kubelite", "--kubelet-args-file=/var/snap/args/kubelet"),
    ):
        node.process(8, command, *words)
        why = {
            one["source"]: one["why"] for one in assert_nothing_is_concluded(node)["unavailable"]
        }
        assert "the pods of this node may belong to another one" in why["containers"], command


def test_without_checkpoint_directory_and_sandboxes_the_node_object_does_not_help(
    node: Node,
) -> None:
    assert_nothing_is_concluded(node)
    for runtime in ("docker://20.10.24", "containerd://1.7.24"):
        with naming(node, runtime) as api:
            assert_nothing_is_concluded(node, *api)


def test_a_node_object_that_contradicts_the_kubelet(node: Node) -> None:
    node.checkpoints.mkdir()
    for flag, earlier in (
        (f"--container-runtime-endpoint={CONTAINERD}", "docker://20.10.24"),
        (KUBENET, "containerd://1.7.24"),
    ):
        node.kubelet(flag)
        with naming(node, earlier) as api:
            unavailable = assert_nothing_is_concluded(node, *api)["unavailable"]
        why = {one["source"]: one["why"] for one in unavailable}
        assert "it is unknown whose pods run here" in why["containers"]


def test_a_process_that_is_named_kubelet_does_not_hide_a_source_without_a_word(node: Node) -> None:
    node.checkpoints.mkdir()
    node.kubelet(KUBENET)
    node.process(99, "kubelet", "/home/user/kubelet", "--container-runtime-endpoint=x")
    unavailable = {one["source"]: one for one in assert_nothing_is_concluded(node)["unavailable"]}
    assert unavailable.keys() == {"containers", "networks", "runtime_status"}
    assert unavailable["containers"] == {
        "source": "containers",
        "why": "it is unknown whose pods run here: processes named kubelet name different runtimes, such as x",
    }
    assert nodeleak("scan", "--api=off", *node.options).code == 3


# Nothing is lost to caution


@pytest.mark.parametrize(
    ("kubelet", "flags"),
    [
        ("kubelet", [KUBENET]),
        ("kubelet", [KUBENET, "--container-runtime=docker"]),
        # dockershim on a socket of another name
        (
            "kubelet",
            [
                KUBENET,
                "--container-runtime=docker",
                "--container-runtime-endpoint=unix:///run/kubelet.sock",
            ],
        ),
        ("kubelet", [CRI_DOCKERD]),
        ("kubelet", ["--config", "/config.yaml"]),
        ("k3s-agent", ["agent", CRI_DOCKERD]),
    ],
)
def test_a_node_on_which_every_reservation_leaked_is_diagnosed_and_cleaned(
    node: Node, kubelet: str, flags: list[str]
) -> None:
    node.checkpoints.mkdir()
    (node.home / "config.yaml").write_text(
        "containerRuntimeEndpoint: unix:///run/cri-dockerd.sock\n"
    )
    node.process(7, "dockerd-current" if len(flags) == 1 else "dockerd", "/usr/bin/dockerd")
    node.process(8, kubelet, f"/usr/bin/{kubelet}", *flags)
    document = node.scan()
    assert {one["detector"] for one in document["findings"]} >= {"leaked_reservation"}
    assert {one["state"] for one in document["reservations"]} == {"leaked"}
    done = node.clean()
    assert "7 released" in done.said, done.out
    assert node.left == set()
    drained = node.scan()
    assert (drained["unavailable"], drained["findings"], drained["reservations"]) == ([], [], [])


@pytest.mark.parametrize("shown_by", ["a sandbox of the node's network that runs", "the Node"])
def test_where_the_kubelet_names_no_runtime_docker_is_it_if_another_word_shows_that(
    node: Node, shown_by: str
) -> None:
    node.checkpoints.mkdir()
    node.process(8, "k3s-server", "/usr/local/bin/k3s", "server")
    if shown_by == "the Node":
        with naming(node, "docker://20.10.24") as api:
            assert "7 released" in node.clean(api=api).said
    else:
        node.listed.append({**CONTAINER, "Id": "a" * 64})
        (node.checkpoints / ("a" * 64)).write_text("{}")
        assert "7 released" in node.clean().said


@pytest.mark.parametrize(
    "stopped", [True, False], ids=["stopped", "its command line is not readable"]
)
def test_where_the_kubelet_cannot_be_asked_its_checkpoint_directory_counts(
    node: Node, stopped: bool
) -> None:
    node.checkpoints.mkdir()
    node.kubelet(KUBENET)
    (node.proc / "8/cmdline").unlink()
    if stopped:
        (node.proc / "8/stat").unlink()
    node.process(90, "pause", "/pause", ip=SEEN)
    with FakeServer(docker(node.listed)) as local:
        done = node.clean("--settle=0s", f"--docker-host={local.url.replace('http', 'tcp')}")
    assert ("6 released" in done.said, node.left, node.docker.requests) == (True, {SEEN}, [])


def drained(incident: FakeNode) -> FakeNode:
    """Only pods of the node's own network are left, and the leaks."""
    return replace(
        incident, running=tuple(one for one in incident.running if not one.ip), pending=()
    )


def at_its_worst(incident: FakeNode) -> FakeNode:
    """Every sandbox that reserved an address is gone, those of the node's network too."""
    return replace(incident, running=(), leaked=incident.reserved)


@pytest.mark.parametrize("api", ["on", "off"])
@pytest.mark.parametrize(("change", "released"), [(drained, 7), (at_its_worst, 125)])
def test_the_incident_is_diagnosed_and_cleaned(
    tmp_path: Path, api: str, change: Callable[[FakeNode], FakeNode], released: int
) -> None:
    with simulated(tmp_path, change) as incident:
        scan = nodeleak("scan", *incident.options(api))
        assert f"{released} leaked" in scan.said
        assert (scan.code, scan.err) == (0, "")
        done = incident.clean("--apply", "--max-share=100%", api=api)
    assert f"{released} released" in done.said, done.out
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
def test_a_restart_and_a_kubelet_that_is_not_recognized_release_nothing_and_no_setting_is_offered(
    node: Node, command: str, words: list[str], who: str
) -> None:
    node.checkpoints.mkdir()
    node.process(8, "my-kubelet", "/opt/my-kubelet", KUBENET)
    unknown = node.clean()
    assert "it is not known when the kubelet started: its process was not found" in unknown.said
    node.kubelet(KUBENET)
    node.process(99, command, *words, ago=20)  # an older process of the same name hides it not
    done = node.clean()
    why = rf"unsettled .*{who} started [23]\d s ago, and --settle is 300 s: wait \d+ s "
    assert re.search(why, done.said), done.out
    assert "override with" not in unknown.said + done.out
    assert node.left == set(RESERVED)


# Asking starts nothing: the socket of a stopped docker belongs to systemd, which starts it at the first connection


@pytest.mark.parametrize("there", ["kubelet", "containerd", "podman"])
@pytest.mark.parametrize("command", ["scan", "clean"])
def test_a_stopped_docker_is_not_asked_here_or_on_another_machine(
    node: Node, there: str, command: str
) -> None:
    (node.home / "proc/7/stat").unlink()
    node.kubelet(KUBENET)
    node.process(9, there, f"/usr/bin/{there}")
    with FakeServer(docker(node.listed)) as remote:
        for url in (node.docker.url, remote.url.replace("http", "tcp")):
            done = nodeleak(command, "--api=off", *node.options, f"--docker-host={url}")
            assert done.code == 3
            why = f"docker does not run on this node (no dockerd or dockerd-current in {node.home}/proc)"
            assert why in done.said + done.err
        assert node.docker.requests == remote.requests == []


def test_without_the_nodes_processes_docker_is_not_asked(node: Node) -> None:
    (node.home / "proc/7/stat").unlink()
    with FakeServer(docker(node.listed)) as remote:
        for where in (node.docker.url, remote.url.replace("http", "tcp")):
            done = nodeleak("scan", "--api=off", *node.options, f"--docker-host={where}")
            assert (done.code, remote.requests, node.docker.requests) == (3, [], [])
            assert (
                "no container runtime was asked, because it is unknown which one runs: no kubelet and"
                in done.said
            )
            assert "set hostPID: true" in done.said
    away = {
        "cni-networks-dir",
        "checkpoint-dir",
        "cni-config-dir",
        "cni-cache-dir",
        "device-plugins-dir",
        "run-dir",
    }
    nowhere = node.home / "nowhere"
    (nowhere / "proc").mkdir(parents=True)
    done = nodeleak(
        "scan",
        "--api=off",
        f"--proc={nowhere}/proc",
        *(f"--{name}={nowhere}/{name}" for name in away),
    )
    done.shows(3, f"no kubelet and no container runtime in {nowhere}/proc")
    assert "set hostPID: true" in done.said
