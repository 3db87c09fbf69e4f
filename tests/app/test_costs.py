"""What each node of a fleet costs: connections of a settled daemon to the API server, and samples that it serves."""

import json
import socket
import threading
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from agent.app import loop
from agent.app.api_server import watched
from agent.config import load
from agent.model.snapshot import Known
from tests.bench.surroundings import fake_node
from tests.cli import commands
from tests.cli.commands import served, syncs
from tests.fakes.apiserver import apiserver
from tests.fakes.nodes import healthy
from tests.sources.kube.connections import running
from tests.sources.reading import read
from tests.wire import established, kubeconfig, until

MOST_SERIES = 100
CHECKPOINT = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":["GPU-a"]}},"Checksum":1}'


def test_a_settled_daemon_has_a_connection_for_each_watch_and_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, ahead = loop.clock, 0.0
    monkeypatch.setattr(loop, "clock", lambda: clock() + ahead)
    fake = healthy(datetime.fromisoformat("2026-03-26T20:00:00Z"), 3, "10.244.1.0/24")
    with apiserver(fake) as url:
        config = str(kubeconfig(tmp_path / "kubeconfig", url))
        # So that each watch lasts a second.
        sources, watches = watched(
            load("run", {"node": "worker-1", "kubeconfig": config, "stale_after": "2s"}, {})
        )
        port, seen, number = urlsplit(url).port or 0, list[set[str]](), 2

        def requests(kind: str) -> int:
            with urlopen(f"{url}/fake/requests") as answer:  # noqa: S310 (the fake)
                return int(json.load(answer).get(kind, 0))

        def is_settled() -> bool:
            seen.append(established(port))
            return len(seen[-1]) == number

        with running(watches, threading.Event()):
            until(
                lambda: requests("GET version") == 2, "both connections have asked for the version"
            )
            until(is_settled, "only those of the watches are left")
            settled = seen[-1]
            begun = requests("WATCH pods"), requests("WATCH nodes"), requests("LIST nodes")
            ahead = 2000.0  # it is time to ask whether etcd was restored, beside a watch
            until(
                lambda: requests("WATCH pods") > begun[0] + 1,
                "the watch of the pods has begun again, twice",
            )
            until(
                lambda: requests("WATCH nodes") > begun[1] + 1,
                "the watch of the Node has begun again, twice",
            )
            assert requests("LIST nodes") > begun[2], "etcd's revision was asked for meanwhile"
            until(
                lambda: established(port) == settled,
                f"{settled} are used again, not {established(port)}",
            )
            assert all(isinstance(read(sources.snapshot, name), Known) for name in ("pods", "node"))


@pytest.mark.parametrize("runtime", ["docker://19.3.15", "containerd://1.6.20~ds1"])
def test_a_healthy_node_has_few_series(runtime: str, tmp_path: Path) -> None:
    """In observe mode, with the API server, one network and one device resource."""
    with (
        fake_node(3, "10.64.0.0/20", runtime=runtime) as (host, _),
        socket.socket(socket.AF_UNIX) as kubelet,
    ):
        kubelet.bind(str(tmp_path / "kubelet.sock"))
        (tmp_path / "kubelet_internal_checkpoint").write_bytes(CHECKPOINT)
        options = host.options if runtime.startswith("docker") else host.options_without_docker
        server = ("--node=worker-1", f"--kubeconfig={host.kubeconfig}", "--listen=127.0.0.1:0")
        quick = ("--interval=100ms", "--confirm-after=100ms", f"--device-plugins-dir={tmp_path}")
        with commands.running(*server, *options, *quick) as agent:
            port = agent.log_event("agent.started")["port"]
            until(lambda: syncs(port) > 3, "it syncs", 20)
            text = served(port, "/metrics")[1]
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert [
        line
        for line in samples
        if line.startswith(("nodeleak_source_up", "nodeleak_device_plugin_reg"))
    ]
    assert [line for line in samples if "_up{" in line and not line.endswith(" 1.0")] == []
    assert [
        line
        for line in samples
        if line.startswith("nodeleak_findings{") and not line.endswith(" 0.0")
    ] == []
    assert len(samples) <= MOST_SERIES, text
    assert 'commit="unknown"' in text, "a checkout has no commit"


def test_only_a_daemon_that_uses_the_api_server_loads_its_client() -> None:
    """It is a third of the daemon's memory."""
    tell = ("env", "PYTHONPROFILEIMPORTTIME=1")  # each module that is imported, on standard error
    options = ("--api=off", "--listen=127.0.0.1:0", "--interval=100ms")
    with (
        fake_node(3, "10.64.0.0/20", runtime="containerd://1.6.20~ds1") as (host, _),
        commands.running(*host.options_without_docker, *options, prefix=tell) as agent,
    ):
        port = agent.log_event("agent.started")["port"]
        until(lambda: syncs(port) > 1, "it syncs", 20)
        imported = {line.rpartition("|")[2].strip() for line in agent.lines if "|" in line}
    assert "agent.app.daemon" in imported
    assert not {"kubernetes", "pydantic", "requests"} & imported
