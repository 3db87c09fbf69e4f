"""The second look at one sandbox: the same places as the first, asked live."""

import gc
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.model.device_history import StoredHistory
from agent.model.devices import TransitionKind
from agent.model.snapshot import Known, NotRequested, Unavailable
from agent.model.volumes import Mount
from agent.sources.error import SourceError
from agent.sources.live import LiveSources, device_plugins_in, left_alone, mounts_below
from agent.sources.runtime.docker import Docker
from tests.builders import KVM, transition
from tests.wire import ID, Answer, Request, Standin, hang, http

# The docker package forgets the socket of a client that could not be made; the collector finds it.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(autouse=True, scope="module")
def _collected_here() -> Iterator[None]:
    yield
    gc.collect()


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[LiveSources]:
    docker = Docker(f"unix://{tmp_path}/docker.sock", 0.3)
    for name in ("sandbox", "proc"):
        (tmp_path / name).mkdir()
    yield LiveSources(
        networks=["kubenet"],
        networks_dir=tmp_path / "networks",
        checkpoint_dirs=[tmp_path / "sandbox"],
        cache_dirs=[tmp_path / "cache"],
        proc=tmp_path / "proc",
        docker=docker,
        api=left_alone("--api=off"),
        device_plugins=device_plugins_in(None, tmp_path / "proc", StoredHistory),
        state_dir=tmp_path / "state",
        node_name="worker-1",
        mounts=mounts_below(None, tmp_path / "proc"),
    )
    docker.close()


def process(proc: Path, pid: int, ip: str, ipv6: str) -> None:
    """Copy one process whose namespace has two addresses."""
    home = proc / str(pid)
    (home / "net").mkdir(parents=True)
    (home / "ns").mkdir()
    (home / "ns/net").symlink_to(f"net:[{pid}]")
    (home / "comm").write_text("nginx\n")
    (home / "net/fib_trie").write_text(f"Main:\n  |-- {ip}\n     /32 host LOCAL\n")
    (home / "net/if_inet6").write_text(f"{ipv6} 03 40 00 82     eth0\n")


def test_who_has_one_of_the_addresses_configured_is_named(sources: LiveSources, tmp_path: Path) -> None:
    process(tmp_path / "proc", 71, "10.244.1.9", "fd000099000000000000000000000009")
    assert sources.holder_of(["10.244.1.9"]) == "process 71 (nginx)"
    assert sources.holder_of(["10.9.9.9", "fd00:99::9"]) == "process 71 (nginx)"
    assert sources.holder_of(["10.244.1.90", "10.244.1.1", "fd00:99::90"]) == ""


def test_unread_is_not_free_without_processes_nobody_can_be_asked(sources: LiveSources) -> None:
    with pytest.raises(SourceError, match="shows no process's network"):
        sources.holder_of(["10.244.1.9"])


def test_the_kubelets_checkpoint_is_asked_for(sources: LiveSources, tmp_path: Path) -> None:
    assert not sources.has_checkpoint(ID)
    (tmp_path / "sandbox" / ID).touch()
    assert sources.has_checkpoint(ID)


def test_docker_is_asked_for_the_one_container(sources: LiveSources, tmp_path: Path) -> None:
    there = {ID: http(json.dumps({"Id": ID}))}

    def answers(request: Request) -> Answer:
        if request.path == "/version":
            return [http('{"ApiVersion": "1.41"}')]
        container_id = request.path.split("/")[3]
        missing = http(json.dumps({"message": f"No such container: {container_id}"}), "404 Not Found")
        return [there.get(container_id, missing)]

    with Standin(answers, at=tmp_path / "docker.sock"):
        assert sources.has_container(ID)
        assert not sources.has_container("f" * 64)


def test_unread_is_not_gone_an_answer_that_drips_is_cut_off(sources: LiveSources, tmp_path: Path) -> None:
    def dripping(request: Request) -> Answer:
        if request.path == "/version":
            yield http('{"ApiVersion": "1.41"}')
            return
        yield b"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n"
        for _ in range(15):
            yield b" "
            server.closing.wait(0.1)

    server: Standin = Standin(dripping, at=tmp_path / "docker.sock")
    with server, pytest.raises(SourceError, match=r"docker: no whole answer within 0\.36 s"):
        sources.has_container(ID)


def test_unread_is_not_gone_a_docker_that_hangs_or_is_away_gives_no_word(sources: LiveSources, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="docker: "):
        sources.has_container(ID)
    good = [http('{"ApiVersion": "1.41"}')]
    server: Standin = Standin(
        lambda request: good if request.path == "/version" else hang(server), at=tmp_path / "docker.sock"
    )
    with server, pytest.raises(SourceError, match="docker: "):
        sources.has_container(ID)


# Device plugins


def test_the_directory_of_the_device_plugins_and_the_history_are_read_together(tmp_path: Path) -> None:
    seen = transition(TransitionKind.REGISTERED, KVM)
    (tmp_path / "devices").mkdir()
    stored = StoredHistory((seen,), "damaged")
    (read,) = device_plugins_in(tmp_path / "devices", tmp_path / "proc", lambda: stored)().known()
    assert (read.sockets, read.history, read.trouble) == ((), (seen,), "damaged")


def test_unread_is_not_empty_without_the_directory_there_is_no_word_of_device_plugins(tmp_path: Path) -> None:
    read = device_plugins_in(tmp_path / "devices", tmp_path / "proc", StoredHistory)
    assert read() == Unavailable("device_plugins", f"{tmp_path}/devices does not exist")


def test_device_plugins_are_left_alone_by_choice(sources: LiveSources) -> None:
    assert sources.device_plugins() == NotRequested("device_plugins", "--device-plugins-dir=off")


# Volumes


def test_the_mount_table_and_the_kubelets_directory_are_read_together(tmp_path: Path) -> None:
    kubelet, place = tmp_path / "kubelet", "plugins/kubernetes.io/gce-pd/mounts/d-1"
    (kubelet / place).mkdir(parents=True)
    (tmp_path / "proc" / "1").mkdir(parents=True)
    (tmp_path / "proc/1/mountinfo").write_text(f"1 0 98:0 / {kubelet}/{place} rw - ext4 /dev/sdb rw\n")
    assert mounts_below(kubelet, tmp_path / "proc")() == Known((Mount("kubernetes.io/gce-pd/d-1"),))


def test_unread_is_not_unmounted_without_the_kubelets_directory_there_is_no_word_of_mounts(tmp_path: Path) -> None:
    why = f"{tmp_path}/kubelet/plugins does not exist: is it the kubelet's directory, and mounted?"
    assert mounts_below(tmp_path / "kubelet", tmp_path / "proc")() == Unavailable("mounts", why)


def test_volumes_are_left_alone_by_choice(sources: LiveSources) -> None:
    assert sources.mounts() == NotRequested("mounts", "--kubelet-dir=off")
    assert sources.attachments(["v"], []) == NotRequested("attachments", "--api=off")


def test_without_the_api_server_its_clock_is_not_known(sources: LiveSources) -> None:
    assert sources.api_skew() is None
