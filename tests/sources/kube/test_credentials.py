"""Credentials that cannot be had, or not in time: plugins and files that hang, fail, or come
back."""

import json
import os
import ssl
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.app.api_server import watched
from agent.config import load
from agent.kube_events.writer import Writer
from agent.model.snapshot import Known, Unavailable
from agent.sources.kube.loader import loader
from agent.sources.source_error import SourceError
from tests.sources.kube.connections import Hurry, running, sources_of_command
from tests.sources.kube.old_server import listed
from tests.sources.reading import read
from tests.wire import (
    CHUNKED,
    LAST_CHUNK,
    Answer,
    FakeServer,
    Request,
    hang,
    http,
    kubeconfig,
    self_signed,
    until,
)

V1 = "client.authentication.k8s.io/v1"


def answered(question: Callable[[], Any]) -> Any:
    """Ask in another thread, which may hang: what it returns, or raises."""
    answers: list[Any] = []

    def ask() -> None:
        try:
            answers.append(question())
        except SourceError as error:
            answers.append(error)

    threading.Thread(target=ask, daemon=True).start()
    until(lambda: answers, "it is answered in the end")
    return answers[0]


class Plugin:
    """An exec plugin: a shell script that writes down its process before it does what it is
    told."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "get-token"
        self.started = directory / "started"
        self.kubeconfig = directory / "kubeconfig"

    def does(self, script: str) -> None:
        new = self.path.with_suffix(".new")
        new.write_text(f"#!/bin/sh\necho $$ >> {self.started}\n{script}\n")
        new.chmod(0o755)
        new.rename(self.path)

    def gives_token(self, token: str, expires: str = "") -> None:
        self.gives({"token": token, "expirationTimestamp": expires})

    def gives(self, status: dict[str, str], first: str = "") -> None:
        """`first`: what it does before."""
        tree = {"apiVersion": V1, "kind": "ExecCredential", "status": status}
        self.does(f"{first}\ncat <<'END'\n{json.dumps(tree)}\nEND")

    def use(self, url: str, more: str = "", cluster: str = "") -> Path:
        user = f"{{exec: {{apiVersion: {V1}, command: ./get-token{more}}}}}"
        return kubeconfig(self.kubeconfig, url, user=user, cluster=cluster)

    @property
    def processes(self) -> list[int]:
        """Return the processes that it ever was."""
        lines = self.started.read_text().split() if self.started.exists() else []
        return [int(line) for line in lines]

    def is_gone(self) -> bool:
        """Whether no process of it is left, nor of what it started."""
        groups = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            try:
                groups.append(int(stat.read_text().rpartition(")")[2].split()[2]))
            except OSError:  # it has just ended
                continue
        return not set(groups) & set(self.processes)


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Plugin]:
    found = Plugin(tmp_path)
    yield found
    until(found.is_gone, "no process is left")


def serving(request: Request) -> Answer:
    """Answer lists of nothing, and watches that end at once."""
    if request.watches:
        return [CHUNKED, LAST_CHUNK]
    return [http(listed("List", 40))]


# A command


def test_a_plugin_that_hangs_makes_the_sources_of_a_command_unavailable_and_is_ended(
    plugin: Plugin,
) -> None:
    for script in (
        "sleep 1000",
        "sleep 1000 & wait",
        "exec >&- 2>&-; sleep 1000",
        "trap '' TERM; sleep 1000",
    ):
        plugin.does(script)
        path = plugin.use("https://127.0.0.1:1")
        before = len(plugin.processes)
        sources = answered(partial(sources_of_command, path, api_timeout="200ms"))
        for name in ("pods", "node"):
            reading = answered(partial(read, sources, name))
            why = f"{path}: exec plugin ./get-token: it did not end within 0.2 s"
            assert reading == Unavailable(name, why)
        assert len(plugin.processes) == before + 1, "it is waited for once"
        until(plugin.is_gone, "it is ended, and its children")


def test_what_a_plugin_leaves_behind_is_ended(plugin: Plugin) -> None:
    """It gives a token, or fails, and its children stay, with its outputs or without them."""
    for child in ("sleep 1000 &", "sleep 1000 >&- 2>&- &"):
        plugin.gives({"token": "good"}, first=child)
        with FakeServer(serving) as server:
            sources = sources_of_command(plugin.use(server.url), api_timeout="500ms")
            assert read(sources, "pods") == Known(())
        until(plugin.is_gone, "its child is ended")
        plugin.does(f"{child} exit 3")
        sources = sources_of_command(plugin.use("https://127.0.0.1:1"), api_timeout="200ms")
        assert "exit code 3" in read(sources, "pods").why  # type: ignore[union-attr]
        until(plugin.is_gone, "its child is ended")


def test_a_plugin_that_fails_makes_them_unavailable_with_what_it_says(plugin: Plugin) -> None:
    def prints(**changes: Any) -> str:
        return f"echo '{json.dumps({'apiVersion': V1, 'kind': 'ExecCredential'} | changes)}'"

    no_credential = "its output is not an ExecCredential"
    for script, why in (
        ("echo 'Unable to\n log in' >&2; exit 254", "exit code 254: Unable to log in"),
        ("exit 1", "exit code 1"),
        ("kill -9 $$", "exit code -9"),
        ("", f"{no_credential} (JSONDecodeError)"),
        ("echo '[]'", f"{no_credential} (TypeError)"),
        ("echo null", f"{no_credential} (TypeError)"),
        (prints(), f"{no_credential} (KeyError)"),
        (prints(status=None), f"{no_credential} (AttributeError)"),
        (prints(status={}), "its output has no token and no certificate"),
        (prints(status={"token": "secret"}, apiVersion="v1"), f"{no_credential} (ValueError)"),
        (prints(status={"token": "secret"}, kind="Secret"), f"{no_credential} (ValueError)"),
        ("yes secret", "more output than 1,048,576 bytes"),
        ("yes secret >&2", "more output than 1,048,576 bytes"),
    ):
        plugin.does(script)
        sources = sources_of_command(plugin.use("https://127.0.0.1:1"))
        reading = read(sources, "pods")
        assert isinstance(reading, Unavailable)
        assert reading.why.startswith(f"{plugin.kubeconfig}: exec plugin ./get-token: ")
        assert why in reading.why
        assert "secret" not in reading.why
    plugin.path.unlink()
    reading = read(sources_of_command(plugin.kubeconfig), "pods")
    assert isinstance(reading, Unavailable)
    assert "exec plugin ./get-token: no such file or directory" in reading.why
    plugin.gives_token("x")
    sources = sources_of_command(plugin.use("https://127.0.0.1:1", ", interactiveMode: Always"))
    assert "it needs a terminal" in read(sources, "pods").why  # type: ignore[union-attr]


def test_a_plugin_gets_what_the_kubeconfig_has_for_it_and_gives_a_token(plugin: Plugin) -> None:
    tree = {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "TOKEN"}}
    plugin.does(
        'test "$1" = get && test "$STAGE" = prod && test ! -t 0 || exit 3\n'
        'told=$(echo "$KUBERNETES_EXEC_INFO" | base64 -w0)\n'
        f"echo '{json.dumps(tree)}' | sed \"s|TOKEN|$told|\""
    )
    more = ", args: [get], env: [{name: STAGE, value: prod}], provideClusterInfo: true"
    extension = "extensions: [{name: client.authentication.k8s.io/exec, extension: {audience: us}}]"
    with FakeServer(serving) as server:
        path = plugin.use(server.url, more, extension)
        assert read(sources_of_command(path), "pods") == Known(())
    _, _, token = server.requests[0].headers["authorization"].partition("Bearer ")
    info = json.loads(b64decode(token))
    assert (info["apiVersion"], info["kind"]) == (V1, "ExecCredential")
    assert info["spec"]["interactive"] is False
    assert info["spec"]["cluster"]["server"] == server.url
    assert info["spec"]["cluster"]["config"] == {"audience": "us"}


def test_a_plugin_gives_a_certificate(plugin: Plugin, tmp_path: Path) -> None:
    context, certificate = self_signed(tmp_path)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(certificate)
    key = tmp_path / "server.key"
    with FakeServer(serving, tls=context) as server:
        plugin.gives(
            {"clientCertificateData": certificate.read_text(), "clientKeyData": key.read_text()}
        )
        path = plugin.use(server.url, cluster=f"certificate-authority: {certificate}")
        assert read(sources_of_command(path), "pods") == Known(())


def test_a_token_that_no_header_can_have_is_not_shown(plugin: Plugin, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text("a secret\nof two lines\n")
    why = "API server: cannot send a header of the request: is there a line break in the token?"
    with FakeServer(serving) as server:
        for token in ("a secret\n", "a secret\r\nX-Remote-User: admin", "a secret \N{SNOWMAN}"):
            plugin.gives_token(token)
            reading = read(sources_of_command(plugin.use(server.url)), "pods")
            assert reading == Unavailable("pods", why)
        path = kubeconfig(tmp_path / "other", server.url, user=f"{{tokenFile: {token_file}}}")
        assert read(sources_of_command(path), "pods") == Unavailable("pods", why)
        with pytest.raises(SourceError) as raised:
            Writer(path, 2).create("/api/v1/namespaces/default/events", {})
        assert str(raised.value) == why
    assert server.requests == []


def test_a_file_that_hangs_makes_them_unavailable(tmp_path: Path) -> None:
    fifo, path = tmp_path / "fifo", tmp_path / "kubeconfig"
    os.mkfifo(fifo)
    kubeconfig(path, "https://127.0.0.1:1", user=f"{{tokenFile: {fifo}}}")
    for kubeconfig_path, step in (
        (fifo, "reading the file"),
        (path, "reading a file that it names, or asking its auth-provider"),
    ):
        question = partial(sources_of_command, kubeconfig_path, api_timeout="100ms")
        sources = answered(question)
        reading = answered(partial(read, sources, "pods"))
        assert reading == Unavailable("pods", f"{kubeconfig_path}: still {step} after 2.1 s")
        again = read(answered(question), "pods")
        assert again == reading
        release(fifo)


def release(fifo: Path) -> None:
    """End the thread that waits for it."""
    os.close(os.open(fifo, os.O_WRONLY))


# The daemon


def watching(path: Path, **options: str) -> Any:
    given = {"node": "worker-1", "kubeconfig": str(path), "api_timeout": "200ms", **options}
    sources, watches = watched(load("run", given, {}))
    return sources.snapshot, watches


def test_the_daemon_starts_without_credentials_and_goes_on_trying(plugin: Plugin) -> None:
    plugin.does("sleep 1000")
    with FakeServer(serving) as server:
        path = plugin.use(server.url)
        sources, watches = answered(lambda: watching(path))
        with running(watches, Hurry()):
            until(lambda: all(watch.restarts["broken"] > 1 for watch in watches), "it tries again")
            why = f"{path}: exec plugin ./get-token: it did not end within 0.2 s"
            assert read(sources, "pods") == Unavailable("pods", why)
            plugin.gives_token("good")
            until(lambda: read(sources, "pods") == Known(()), "it is known")
            until(lambda: read(sources, "node") == Known(None), "it is known")
    assert {one.headers["authorization"] for one in server.requests} == {"Bearer good"}


def test_no_sync_waits_for_a_plugin_that_hangs(plugin: Plugin) -> None:
    plugin.gives_token("good")
    path = plugin.use("https://127.0.0.1:1")
    sources, _ = watching(path)
    plugin.does("sleep 1000")
    for name in ("attachments", "sandbox_failures"):
        reading = answered(partial(read, sources, name))
        why = f"{path}: exec plugin ./get-token: it did not end within 0.2 s"
        assert reading == Unavailable(name, why)


def test_who_needs_credentials_at_once_shares_one_plugin(plugin: Plugin) -> None:
    plugin.does("sleep 1000")
    path = plugin.use("https://127.0.0.1:1")
    barrier = threading.Barrier(8)
    failures: list[str] = []

    def connect() -> None:
        barrier.wait(10)
        with pytest.raises(SourceError) as raised:
            loader(path, 3).load()
        failures.append(str(raised.value))

    threads = [threading.Thread(target=connect, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: len(failures) == 8, "each is told")
    assert len(plugin.processes) == 1
    assert set(failures) == {f"{path}: exec plugin ./get-token: it did not end within 3 s"}


def test_an_expired_token_is_replaced_before_the_next_request(plugin: Plugin) -> None:
    soon = datetime.now(UTC) - timedelta(seconds=1)  # noqa: TID251 (the agent reads the real clock)
    plugin.gives_token("one", soon.strftime("%Y-%m-%dT%H:%M:%SZ"))
    begun: list[str] = []

    def answers(request: Request) -> Answer:
        if not request.watches:
            return serving(request)
        begun.append(request.headers["authorization"])
        plugin.gives_token("two")
        return hang(server) if len(begun) > 1 else [CHUNKED, LAST_CHUNK]

    server = FakeServer(answers)
    with server:
        _, (watch, _) = watching(plugin.use(server.url), api_timeout="10s")
        stop = Hurry()
        with running([watch], stop):
            until(lambda: len(begun) > 1, "it watches again")
            stop.set()
            server.closing.set()
    assert begun == ["Bearer one", "Bearer two"]
    assert watch.restarts["refused"] == 0
