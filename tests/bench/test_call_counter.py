"""The proxy that counts requests to a runtime."""

from pathlib import Path

import pytest

from agent.sources.runtime.cri import Cri
from agent.sources.source_error import SourceError
from tests.bench.call_counter import counting
from tests.fakes import cri
from tests.fakes.grpc_server import FakeGrpcServer

_LISTED, _UNKNOWN = "a" * 64, "b" * 64


def test_every_call_is_counted_and_answered(tmp_path: Path) -> None:
    runtime = cri.FakeRuntime(sandboxes=[cri.sandbox(_LISTED, labels={"large": "x" * 200_000})])
    with (
        FakeGrpcServer(tmp_path / "server", runtime.answer) as server,
        counting(tmp_path / "proxy", tmp_path / "server") as proxy,
    ):
        endpoint = Cri(tmp_path / "proxy", 20, lambda: 0.0)
        assert [[one.id for one in endpoint.containers([_LISTED])] for _ in range(3)] == [[_LISTED]] * 3
        assert proxy.calls == {
            "/runtime.v1.RuntimeService/ListPodSandbox": 3,
            "/runtime.v1.RuntimeService/ListContainers": 3,
        }
        endpoint.containers([_UNKNOWN])
        assert sum(proxy.calls.values()) == len(server.calls)
        assert proxy.calls["/containerd.services.containers.v1.Containers/List"] == 1


def test_a_server_that_is_gone_looks_gone(tmp_path: Path) -> None:
    with counting(tmp_path / "proxy", tmp_path / "server") as proxy, pytest.raises(SourceError):
        Cri(tmp_path / "proxy", 20, lambda: 0.0).containers([])
    assert proxy.calls == {}
