"""What a kubeconfig may say about the API server and the user, as kubectl understands it."""

import ssl
from base64 import b64encode
from pathlib import Path

import pytest

from agent.app.sources import for_command
from agent.config import UsageError, load
from agent.model.snapshot import Known, Unavailable
from tests.sources.kube.connections import sources_of_command
from tests.sources.kube.old_server import listed
from tests.sources.reading import read
from tests.wire import Answer, FakeServer, Request, http, kubeconfig, refusing_port, self_signed


def serving(_: Request) -> Answer:
    """Answer lists of nothing."""
    return [http(listed("List", 40))]


def why(path: Path) -> str:
    """Return why the pods cannot be read with a kubeconfig."""
    reading = read(sources_of_command(path), "pods")
    assert isinstance(reading, Unavailable)
    return reading.why


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def encoded(path: Path) -> str:
    return b64encode(path.read_bytes()).decode()


@pytest.fixture
def tls(tmp_path: Path) -> ssl.SSLContext:
    """Return what lets only clients in that have the server's own certificate."""
    context, certificate = self_signed(tmp_path)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificate)
    return context


def test_certificates_are_paths_beside_the_kubeconfig_or_data_in_it(
    tmp_path: Path, tls: ssl.SSLContext
) -> None:
    certificate, key = tmp_path / "server.crt", tmp_path / "server.key"
    path = tmp_path / "kubeconfig"
    cases = (
        (
            "certificate-authority: server.crt",
            "{client-certificate: server.crt, client-key: ./server.key}",
        ),
        (
            f"certificate-authority: {certificate}",
            f"{{client-certificate: {certificate}, client-key: {key}}}",
        ),
        # Data are preferred to a path.
        (
            f"certificate-authority: gone, certificate-authority-data: {encoded(certificate)}",
            f"{{client-certificate-data: {encoded(certificate)}, client-key-data: {encoded(key)}}}",
        ),
    )
    with FakeServer(serving, tls=tls) as server:
        for cluster, user in cases:
            kubeconfig(path, server.url, user=user, cluster=cluster)
            assert read(sources_of_command(path), "pods") == Known(())
        kubeconfig(path, server.url, cluster="certificate-authority: server.crt")
        assert why(path).startswith("API server: ")
    kubeconfig(path, server.url, cluster="certificate-authority: gone")
    with pytest.raises(UsageError, match=rf"cannot read {path}: .*gone"):
        sources_of_command(path)


def test_a_certificate_is_verified_by_the_name_that_it_is_to_have_or_not_at_all(
    tmp_path: Path,
) -> None:
    context, certificate = self_signed(tmp_path)
    authority = f"certificate-authority: {certificate}"
    path = tmp_path / "kubeconfig"
    with FakeServer(serving, tls=context) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        kubeconfig(path, url, cluster=authority)
        assert "certificate verify failed" in why(path)
        assert server.requests == []
        kubeconfig(path, url, cluster=f"{authority}, tls-server-name: 127.0.0.1")
        assert read(sources_of_command(path), "pods") == Known(())
        kubeconfig(path, url, cluster=f"{authority}, tls-server-name: other")
        assert "certificate verify failed" in why(path)
        # An empty value counts as none.
        empty = f"{authority}, tls-server-name: '', proxy-url: ''"
        kubeconfig(path, server.url, cluster=empty)
        assert read(sources_of_command(path), "pods") == Known(())
        kubeconfig(path, url, cluster="insecure-skip-tls-verify: true")
        with pytest.warns(match="Unverified HTTPS request"):
            assert read(sources_of_command(path), "pods") == Known(())


def test_each_kind_of_user_has_its_header(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-file")
    basic = b64encode(b"admin:secret").decode()
    path = tmp_path / "kubeconfig"
    with FakeServer(serving) as server:
        for user, header in (
            ("{}", None),
            ("{token: inline}", "Bearer inline"),
            ("{tokenFile: token}", "Bearer from-file"),
            ("{token: inline, tokenFile: gone}", "Bearer inline"),
            ("{username: admin, password: secret}", f"Basic {basic}"),
            (
                "{auth-provider: {name: gcp, config: {access-token: cached}}}",
                "Bearer cached",
            ),
            ("{auth-provider: {name: azure}, token: inline}", "Bearer inline"),
        ):
            kubeconfig(path, server.url, user=user)
            assert read(sources_of_command(path), "pods") == Known(())
            assert server.requests[-1].headers.get("authorization") == header


def test_an_auth_provider_that_gives_no_token_is_wrong_usage_and_one_that_is_away_is_not(
    tmp_path: Path,
) -> None:
    path = tmp_path / "kubeconfig"
    for user in (
        "{auth-provider: {name: oidc, config: {}}}",
        "{auth-provider: {name: gcp, config: {cmd-path: /bin/false}}}",
        "{auth-provider: {name: gcp}}",
    ):
        kubeconfig(path, "http://127.0.0.1:1", user=user)
        with pytest.raises(UsageError, match=f"cannot read {path}: ."):
            sources_of_command(path)
    claims = b64encode(b'{"exp": 1}').decode().rstrip("=")
    with refusing_port() as port:
        issuer = f"idp-issuer-url: 'http://127.0.0.1:{port}'"
        config = f"{{id-token: a.{claims}.c, client-id: us, refresh-token: t, {issuer}}}"
        user = f"{{auth-provider: {{name: oidc, config: {config}}}}}"
        kubeconfig(path, "http://127.0.0.1:1", user=user)
        assert why(path).startswith(f"{path}: auth-provider: ")


def test_the_current_context_of_several_files_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = tmp_path / "first", tmp_path / "below" / "second"
    second.parent.mkdir()
    (second.parent / "token").write_text("second")
    with FakeServer(serving) as server:
        first.write_text("""\
current-context: b
contexts: [{name: a, context: {cluster: a, user: a}}, {name: b, context: {cluster: b, user: b}}]
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
users: [{name: a, user: {token: first}}]
""")
        second.write_text(f"""\
clusters: [{{name: b, cluster: {{server: "{server.url}/"}}}}, {{name: a, cluster: {{server: "http://x"}}}}]
users: [{{name: b, user: {{tokenFile: token}}}}]
""")
        monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'gone'}:{second}")
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        sources = for_command(load("scan", {"node": "worker-1"}, {})).snapshot
        assert read(sources, "pods") == Known(())
    assert server.requests[0].headers["authorization"] == "Bearer second"
    assert server.requests[0].path == "/api/v1/pods"


def test_a_path_of_the_server_comes_before_that_of_the_request(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    with FakeServer(serving) as server:
        kubeconfig(path, f"{server.url}/k8s/clusters/c-1/")
        assert read(sources_of_command(path), "pods") == Known(())
    assert server.requests[0].path == "/k8s/clusters/c-1/api/v1/pods"


def test_a_proxy_is_that_of_the_kubeconfig_or_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kubeconfig"
    target = "http://api.example:6443"
    with FakeServer(serving) as proxy:
        kubeconfig(path, target, cluster=f"proxy-url: '{proxy.url}'")
        assert read(sources_of_command(path), "pods") == Known(())
        kubeconfig(path, target)
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert read(sources_of_command(path), "pods") == Known(())
        assert all(request.target.startswith(f"{target}/") for request in proxy.requests)
        count = len(proxy.requests)
        with FakeServer(serving) as server:
            monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
            kubeconfig(path, server.url, cluster=f"proxy-url: '{proxy.url}'")
            assert read(sources_of_command(path), "pods") == Known(())
        assert len(proxy.requests) == count
    for odd in ("socks5://127.0.0.1:1", "ftp://127.0.0.1", "nonsense"):
        kubeconfig(path, target, cluster=f"proxy-url: '{odd}'")
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert why(path).startswith("API server: ")
