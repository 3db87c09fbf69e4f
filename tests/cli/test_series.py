"""What a node costs: the samples that a running daemon serves, because a fleet pays for each of them on every node."""

import socket
from pathlib import Path

import pytest

from tests.bench.surroundings import fake_node
from tests.cli.commands import running, served, syncs
from tests.wire import until

MOST_SERIES = 80
CHECKPOINT = b'{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"nvidia.com/gpu":["GPU-a"]}},"Checksum":1}'


@pytest.mark.parametrize("runtime", ["docker://19.3.15", "containerd://1.6.20~ds1"])
def test_a_healthy_node_has_few_series(runtime: str, tmp_path: Path) -> None:
    """In observe mode, with the API server, one network and one device resource."""
    with fake_node(3, "10.64.0.0/20", runtime=runtime) as (host, _), socket.socket(socket.AF_UNIX) as kubelet:
        kubelet.bind(str(tmp_path / "kubelet.sock"))
        (tmp_path / "kubelet_internal_checkpoint").write_bytes(CHECKPOINT)
        options = host.options if runtime.startswith("docker") else host.options_without_docker
        server = ("--node=worker-1", f"--kubeconfig={host.kubeconfig}", "--listen=127.0.0.1:0")
        quick = ("--interval=100ms", "--confirm-after=100ms", f"--device-plugins-dir={tmp_path}")
        with running(*server, *options, *quick) as agent:
            port = agent.log_event("agent.started")["port"]
            until(lambda: syncs(port) > 3, "it syncs", 20)
            text = served(port, "/metrics")[1]
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert [line for line in samples if line.startswith(("nodeleak_source_up", "nodeleak_device_plugin_reg"))]
    assert [line for line in samples if "_up{" in line and not line.endswith(" 1.0")] == []
    assert [line for line in samples if line.startswith("nodeleak_findings{") and not line.endswith(" 0.0")] == []
    assert len(samples) <= MOST_SERIES, text
    assert 'commit="unknown"' in text, "a checkout has no commit"
