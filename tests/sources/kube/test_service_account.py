"""The credentials of a pod: its service account, whose token the kubelet rotates."""

import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.app.sources import for_command
from agent.config import UsageError, load
from agent.model.snapshot import Known
from agent.sources.kube import service_account
from agent.sources.kube.api import Api, ServerInfo
from agent.sources.kube.loader import loader
from agent.sources.source_error import SourceError
from tests.sources.kube.connections import moment
from tests.sources.kube.old_server import listed
from tests.sources.reading import read
from tests.wire import KeepAliveServer, http, self_signed


class ServiceAccount:
    """A service account as the kubelet mounts it: a rotation replaces all files together."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._count = 0
        directory.mkdir()
        for name in ("token", "ca.crt"):
            (directory / name).symlink_to(f"..data/{name}")

    def mount(self, token: str, authority: Path) -> None:
        self._count += 1
        new = self.directory / f"..{self._count}"
        new.mkdir()
        (new / "token").write_text(token)
        shutil.copy(authority, new / "ca.crt")
        link = self.directory / "..new"
        link.symlink_to(new.name)
        link.rename(self.directory / "..data")


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    return self_signed(tmp_path)[0]


@pytest.fixture
def authority(tmp_path: Path, tls: ssl.SSLContext) -> Path:  # noqa: ARG001 (it makes the file)
    return tmp_path / "server.crt"


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServiceAccount:
    mounted = ServiceAccount(tmp_path / "serviceaccount")
    monkeypatch.setattr(service_account, "DIRECTORY", mounted.directory)
    monkeypatch.setenv("KUBECONFIG", "/gone")
    return mounted


@pytest.fixture
def server(tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch) -> Iterator[KeepAliveServer]:
    with KeepAliveServer(lambda _: [http(listed("List", 40))], tls=tls) as running:
        host, port = running.address.split(":")
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        # A pod reaches its API server directly.
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
        yield running


def test_a_command_in_a_pod_uses_its_token_and_authority(
    account: ServiceAccount, server: KeepAliveServer, authority: Path
) -> None:
    account.mount("from-kubelet", authority)
    sources = for_command(load("scan", {"node": "worker-1"}, {})).snapshot
    assert read(sources, "pods") == Known(())
    assert read(sources, "node") == Known(None)
    assert {one.headers["authorization"] for one in server.requests} == {"Bearer from-kubelet"}


def test_a_rotated_token_is_used_by_the_next_request_on_the_same_connection(
    account: ServiceAccount, server: KeepAliveServer, authority: Path
) -> None:
    account.mount("first", authority)
    api = Api(loader(None, 5).load(), 5, ServerInfo(moment))
    api.get("/version")
    account.mount("second", authority)
    api.get("/version")
    account.mount("", authority)
    with pytest.raises(SourceError, match=r"cannot read .*/token: it is empty"):
        api.get("/version")
    (account.directory / "token").unlink()
    with pytest.raises(SourceError, match=r"cannot read .*/token: no such file or directory"):
        api.get("/version")
    api.close()
    ((first, second),) = server.connections
    assert first.headers["authorization"] == "Bearer first"
    assert second.headers["authorization"] == "Bearer second"


def test_a_server_that_another_authority_signed_is_not_trusted(
    account: ServiceAccount, server: KeepAliveServer, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    account.mount("token", self_signed(other)[1])
    api = Api(loader(None, 5).load(), 5, ServerInfo(moment))
    with pytest.raises(SourceError, match="certificate verify failed"):
        api.get("/version")
    assert server.requests == []


def test_an_incomplete_service_account_is_wrong_usage(
    account: ServiceAccount, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    config = load("scan", {"node": "worker-1"}, {})
    nothing = authority.with_name("empty")
    nothing.touch()
    for token, mounted, reason in (
        ("", authority, "/token: it is empty"),
        ("token", nothing, "/ca.crt: it is empty"),
    ):
        account.mount(token, mounted)
        with pytest.raises(UsageError, match=reason):
            for_command(config)
    account.mount("token", authority)
    (account.directory / "ca.crt").unlink()
    with pytest.raises(UsageError, match=r"/ca\.crt: no such file or directory"):
        for_command(config)
    for port in ("", None):
        if port is None:
            monkeypatch.delenv("KUBERNETES_SERVICE_PORT")
        else:
            monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
        with pytest.raises(UsageError, match="KUBERNETES_SERVICE_PORT is not set"):
            for_command(config)
    # Without a service account, $KUBECONFIG is used.
    (account.directory / "token").unlink()
    with pytest.raises(UsageError, match="cannot read /gone: no such file or directory"):
        for_command(config)


def test_a_service_account_that_cannot_be_looked_at_is_wrong_usage_and_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setenv("KUBECONFIG", "/gone")
    config = load("scan", {"node": "worker-1"}, {})
    # Root may look everywhere, so the name is one that no file can have.
    monkeypatch.setattr(service_account, "DIRECTORY", tmp_path / ("x" * 300))
    with pytest.raises(UsageError, match=r"cannot read .*/ca\.crt: file name too long"):
        for_command(config)
    monkeypatch.setattr(service_account, "DIRECTORY", tmp_path / "gone")
    with pytest.raises(UsageError, match="cannot read /gone: no such file or directory"):
        for_command(config)


def test_an_ipv6_address_of_the_api_server_is_written_in_brackets(
    account: ServiceAccount, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.mount("token", authority)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    for host, url in (
        ("fd00::1", "https://[fd00::1]:6443"),
        ("10.96.0.1", "https://10.96.0.1:6443"),
        ("api.internal", "https://api.internal:6443"),
    ):
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
        assert loader(None, 5).load().server == url
