"""The node's sources as they are wired: the readers of a snapshot, and the recheck of one sandbox."""

import gc
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.app.api_server import ApiServer
from agent.cleanup.recheck import Recheck
from agent.config import load
from agent.model.clocks import Moment
from agent.model.devices import TransitionKind
from agent.model.documents import dump_history
from agent.model.release import ProbeResult, Reason
from agent.model.snapshot import SOURCES, Known, NotRequested, Unavailable
from agent.model.volumes import Mount
from agent.sources.collector import take_snapshot
from agent.sources.source import Disabled
from agent.sources.source_error import SourceError
from tests.builders import KVM, NOW, UPTIME, node, node_using, reservation, transition
from tests.fakes.cri import FakeRuntime
from tests.fakes.grpc_server import FakeGrpcServer
from tests.fakes.host import write_sockets
from tests.sources.reading import fields_of, named, read, value_of
from tests.wire import ID, Answer, FakeServer, Request, http, open_directory
from tests.wired import process_table, wired

# The docker package forgets the socket of a client that could not be made; the collector finds it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


Wire = Callable[..., Any]


@pytest.fixture
def wire(tmp_path: Path) -> Iterator[Wire]:
    """Return what wires a node in a private directory; options replace those of the test."""
    names = {"cni_networks_dir": "networks", "checkpoint_dir": "sandbox", "cni_cache_dir": "cache"}
    names |= {"proc": "proc", "state_dir": "state"}
    given: dict[str, object] = {option: tmp_path / name for option, name in names.items()}
    given |= {"docker_host": f"unix://{tmp_path}/docker.sock", "docker_timeout": "300ms"}
    for name in ("sandbox", "proc"):
        (tmp_path / name).mkdir(exist_ok=True)
    yield lambda **options: wired(**given | options)
    gc.collect()


@pytest.fixture
def running_docker(tmp_path: Path) -> None:
    """A process table with a docker in it."""
    process_table(tmp_path / "proc", "dockerd")


@pytest.fixture
def sources(wire: Wire) -> Recheck:
    made: Recheck = wire().recheck
    return made


def process(proc: Path, pid: int, ip: str, ipv6: str) -> None:
    """Copy one process whose namespace has two addresses."""
    home = proc / f"{pid}/task/{pid}"
    (home / "net").mkdir(parents=True)
    (proc / f"{pid}/comm").write_text("nginx\n")
    (home / "net/fib_trie").write_text(f"Main:\n  |-- {ip}\n     /32 host LOCAL\n")
    (home / "net/if_inet6").write_text(f"{ipv6} 03 40 00 82     eth0\n")


def test_the_process_with_a_configured_address_is_named(sources: Recheck, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="shows its network namespace"):
        sources.holder_of(ID, ["10.244.1.9"])
    process(tmp_path / "proc", 71, "10.244.1.9", "fd000099000000000000000000000009")
    (tmp_path / "cache").mkdir()
    assert sources.holder_of(ID, ["10.244.1.9"]) == "process 71 (nginx) has the address configured"
    assert (
        sources.holder_of(ID, ["10.9.9.9", "fd00:99::9"])
        == "process 71 (nginx) has the address configured"
    )
    assert sources.holder_of(ID, ["10.244.1.90", "10.244.1.1", "fd00:99::90"]) is None


def pinned(home: Path) -> None:
    """Write what libcni and the kernel have of a sandbox whose namespace is mounted."""
    process(home / "proc", 1, "10.244.1.1", "fd000099000000000000000000000001")
    mounted = "1 0 0:4 net:[4026532281] /run/netns/cni-9 rw shared:1 - nsfs nsfs rw\n"
    (home / "proc/1/mountinfo").write_text(mounted)
    result = {"interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/var/run/netns/cni-9"}]}
    (home / "cache").mkdir()
    (home / "cache" / f"kubenet-{ID}-eth0").write_text(json.dumps(result))


@pytest.mark.usefixtures("running_docker")
def test_a_mounted_namespace_protects_its_sandbox_even_if_only_a_runtime_has_it(
    sources: Recheck, tmp_path: Path
) -> None:
    def unreadable(pid: int) -> None:
        (tmp_path / f"proc/{pid}/mountinfo").unlink()
        with pytest.raises(
            SourceError, match=rf"cannot read .*/proc/{pid}/mountinfo: no such file or directory"
        ):
            sources.holder_of(ID, ["10.244.1.9"])

    mounted = "its network namespace is still mounted: /run/netns/cni-9"
    pinned(tmp_path)
    table, own = tmp_path / "proc/1/mountinfo", tmp_path / "proc/8/mountinfo"
    text = table.read_text()
    assert sources.holder_of(ID, ["10.244.1.9"]) == mounted
    assert sources.holder_of("f" * 64, ["10.244.1.9"]) is None
    table.write_text("")
    assert sources.holder_of(ID, ["10.244.1.9"]) is None
    unreadable(1)
    shutil.copytree(tmp_path / "proc/7", tmp_path / "proc/8")  # it has started since
    (tmp_path / "proc/8/stat").write_text(f"8 (containerd) S {'0 ' * 18}50 0\n")
    own.write_text(text)
    table.write_text("")
    assert sources.holder_of(ID, ["10.244.1.9"]) == mounted
    unreadable(8)


@pytest.mark.usefixtures("running_docker")
def test_a_left_over_checkpoint_counts_only_where_docker_may_be_the_runtime(
    wire: Wire, tmp_path: Path
) -> None:
    (tmp_path / "sandbox" / ID).touch()
    (tmp_path / "proc/7/stat").write_text(f"7 (containerd) S {'0 ' * 18}50 0\n")
    write_sockets(tmp_path / "proc", "/run/containerd/containerd.sock")
    with open_directory() as run_dir:
        (run_dir / "containerd").mkdir()
        made = wire(runtime="auto", run_dir=str(run_dir), docker_timeout="10s")
        assert (made.recheck.has_checkpoint(ID), made.recheck.has_checkpoint("f" * 64)) == (
            True,
            False,
        )
        with FakeGrpcServer(run_dir / "containerd/containerd.sock", FakeRuntime().answer):
            assert value_of(made.snapshot, "containers") == ()
        assert not made.recheck.has_checkpoint(ID)


def test_a_probe_needs_libcnis_cache(wire: Wire, tmp_path: Path) -> None:
    own = reservation("127.0.0.1")
    write_sockets(tmp_path / "proc")
    for probe in ("on", "off"):
        with pytest.raises(SourceError, match="none of these exists"):
            wire(probe=probe).recheck.probe([own])
    (tmp_path / "cache").mkdir()
    assert wire().recheck.probe([own]) == {
        own.key: ProbeResult("127.0.0.1 is an address of the node itself", Reason.ADDRESS_IN_USE)
    }


@pytest.mark.usefixtures("running_docker")
def test_where_an_address_is_not_asked_a_namespace_of_nobody_objects(
    wire: Wire, tmp_path: Path
) -> None:
    pinned(tmp_path)
    write_sockets(tmp_path / "proc")
    lost, unasked = (
        reservation("203.0.113.9"),
        "203.0.113.9 cannot be probed: the node has it on no link",
    )
    for runtime, mounted, objects in (
        ("dockerd", "/run/netns/cni-10", True),
        ("dockerd", "/run/netns/cni-9", False),  # of a sandbox
        ("dockerd", "/run/docker/netns/default", False),
        ("dockerd", "/run/docker/netns/a1", False),
        ("dockerd", "/run/snap.docker/netns/1e6b0a2f9c3d", False),
        ("dockerd", "/run/snap.docker/netns/default", False),
        ("dockerd", "/run/user/1000/docker/netns/1e6b0a2f9c3d", False),
        ("dockerd", "/srv/engine/exec/netns/1e6b0a2f9c3d", False),  # any --exec-root
        ("dockerd", "/srv/engine/exec/netns/default", False),
        ("dockerd", "/run/netns/1e6b0a2f9c3d", True),  # whoever ran `ip netns add`
        ("dockerd", "/var/run/netns/docker", True),
        ("dockerd", "/srv/engine/exec/netns/cni-10", True),
        ("containerd", "/run/snap.docker/netns/1e6b0a2f9c3d", True),
        ("containerd", "/srv/engine/exec/netns/default", True),
        ("containerd", "/run/snap.docker/netns/default", False),
        ("dockerd", "", False),
        ("containerd", "/run/docker/netns/a1", True),
        (
            "containerd",
            "/run/docker/netns/default",
            False,
        ),  # the node's own, which docker has left mounted
    ):
        (tmp_path / "proc/7/stat").write_text(f"7 ({runtime}) S {'0 ' * 18}50 0\n")
        inode = 4026531992 if "docker" in mounted else 4026532281
        table = f"1 0 0:4 net:[{inode}] {mounted} rw - nsfs nsfs rw\n" if mounted else ""
        (tmp_path / "proc/1/mountinfo").write_text(table)
        for probe, why in (("on", unasked), ("off", "not probed: ")):
            for send in (True, False):
                (result,) = wire(probe=probe).recheck.probe([lost], send=send).values()
                assert why in result.why
                assert result.reason == (Reason.PROBE_UNANSWERED if objects else None), (
                    runtime,
                    mounted,
                )


@pytest.mark.usefixtures("running_docker")
def test_a_slow_answer_times_out_and_is_never_treated_as_gone(
    sources: Recheck, tmp_path: Path
) -> None:
    def dripping(request: Request) -> Answer:
        if request.path == "/version":
            yield http('{"ApiVersion": "1.41"}')
            return
        yield b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"
        for _ in range(15):
            yield b" "
            server.closing.wait(0.1)

    server: FakeServer = FakeServer(dripping, at=tmp_path / "docker.sock")
    with (
        server,
        pytest.raises(SourceError, match=r"container runtime: no complete response within 0\.36 s"),
    ):
        sources.has_container(ID)


# A connection to the socket of a stopped docker starts it, if systemd listens there


def test_a_docker_that_does_not_run_is_never_asked_nor_if_it_stops_between_two_attempts(
    wire: Wire, tmp_path: Path
) -> None:
    def stopping(_: Request) -> Answer:
        (tmp_path / "proc/7/stat").unlink(missing_ok=True)
        (tmp_path / "proc/8").mkdir()
        (tmp_path / "proc/8/stat").write_text(f"8 (kubelet) S {'0 ' * 18}50 0\n")
        return []

    with FakeServer(stopping, at=tmp_path / "docker.sock") as systemd:
        for where in (systemd.url, "tcp://127.0.0.1:1"):
            made = wire(docker_host=where)
            with pytest.raises(
                SourceError, match="docker was not asked, because it is unknown whether it runs"
            ):
                value_of(made.snapshot, "containers")
            with pytest.raises(SourceError, match="docker was not asked"):
                made.recheck.has_container(ID)
        assert systemd.requests == []
        process_table(tmp_path / "proc", "dockerd")
        recheck = wire().recheck
        for why in ("docker: ", "docker does not run on this node"):
            with pytest.raises(SourceError, match=why):
                recheck.has_container(ID)
        assert len(systemd.requests) == 1


def test_each_source_has_a_row_and_only_those_of_the_api_server_end_with_it(wire: Wire) -> None:
    sources = wire().snapshot
    assert sorted(source.name for source in sources) == sorted(SOURCES)
    server = ApiServer(load("scan", {"node": "worker-1"}, {}))
    of_server = server.sources(
        pods=lambda _: (),
        node=lambda _: None,
        watches=lambda: NotRequested("watches", ""),
        brake=None,
    ).snapshot
    without = {
        source.name
        for source in sources
        if isinstance(source, Disabled) and source.reason == "--api=off"
    }
    assert without == {source.name for source in of_server}


LOST = node(node=[node_using("kubernetes.io/gce-pd/d-1")])
"""A node whose status misses a volume, so that mounts are read."""


def test_a_source_that_is_disabled_is_not_requested_and_a_missing_directory_is_not_empty(
    wire: Wire, tmp_path: Path
) -> None:
    sources = wire().snapshot
    for source, why in (
        ("device_plugins", "--device-plugins-dir=off"),
        ("mounts", "--kubelet-dir=off"),
        ("attachments", "--api=off"),
        ("runtimes", "--runtime=docker"),  # which is no answer about others
    ):
        assert read(sources, source, LOST) == NotRequested(source, why)
    assert read(wire(runtime="auto").snapshot, "runtimes") == Known(())
    assert fields_of(sources, "watches") == {}
    sources = wire(
        device_plugins_dir=f"{tmp_path}/devices", kubelet_dir=f"{tmp_path}/kubelet"
    ).snapshot
    for source, directory in (("device_plugins", "devices"), ("mounts", "kubelet/plugins")):
        reading = read(sources, source, LOST)
        assert isinstance(reading, Unavailable)
        assert f"{tmp_path}/{directory} does not exist" in reading.why


def test_device_plugins_and_their_history_are_read_together(wire: Wire, tmp_path: Path) -> None:
    seen, history = (
        transition(TransitionKind.REGISTERED, KVM),
        tmp_path / "state/device-plugins.json",
    )
    for name in ("devices", "state"):
        (tmp_path / name).mkdir()
    for stored, known, trouble in (
        (dump_history([seen]), (seen,), None),
        ("damaged", (), f"{history}: not JSON"),
    ):
        history.write_text(stored)
        plugins = read(
            wire(device_plugins_dir=f"{tmp_path}/devices").snapshot, "device_plugins"
        ).known()
        assert (plugins.sockets, plugins.history, plugins.trouble) == ((), known, trouble)


@pytest.mark.usefixtures("running_docker")
def test_mounts_and_mounted_namespaces_are_those_of_the_first_process(
    wire: Wire, tmp_path: Path
) -> None:
    kubelet, place = tmp_path / "kubelet", "plugins/kubernetes.io/gce-pd/mounts/d-1"
    (kubelet / place).mkdir(parents=True)
    pinned(tmp_path)
    with (tmp_path / "proc/1/mountinfo").open("a") as table:
        table.write(f"2 0 98:0 / {kubelet}/{place} rw - ext4 /dev/sdb rw\n")
    sources = wire(kubelet_dir=str(kubelet)).snapshot
    assert read(sources, "mounts", LOST).known() == (Mount("kubernetes.io/gce-pd/d-1"),)
    assert read(sources, "mounted_namespaces").known() == ("/run/netns/cni-9",)


def test_the_disks_of_the_node_are_those_that_settings_name_and_are_mounted_here(
    wire: Wire, tmp_path: Path
) -> None:
    for directory in ("cni/networks", "kubelet/pods", "run", "proc/1/ns"):
        (tmp_path / directory).mkdir(parents=True, exist_ok=True)
    (tmp_path / "proc/1/mountinfo").touch()
    options = {
        "cni_networks_dir": f"{tmp_path}/cni/networks",
        "kubelet_dir": f"{tmp_path}/kubelet",
        "run_dir": f"{tmp_path}/run",
    }
    assert read(wire(**options).snapshot, "disks").known() == (), "this may be a pod without mounts"
    (tmp_path / "proc/1/ns/mnt").symlink_to("/proc/self/ns/mnt")
    disks = read(wire(**options).snapshot, "disks").known()
    assert [disk.path for disk in disks] == [f"{tmp_path}/cni", "/run", f"{tmp_path}/kubelet"]


def test_what_is_damaged_in_the_cache_is_read_with_it(wire: Wire, tmp_path: Path) -> None:
    sources = wire().snapshot
    (tmp_path / "cache").mkdir()
    (tmp_path / f"cache/kubenet-{'9' * 64}-eth0").touch()
    only = [named(sources, "cni_results")]
    snapshot = take_snapshot(only, "worker-1", Moment(NOW, UPTIME), lambda: 0.0)
    assert [one.damage.value for one in snapshot.damaged_results] == ["it is empty"]
