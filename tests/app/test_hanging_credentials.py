"""Credentials that hang: a real plugin, and files on which opening does not return, as on a hung file system."""

import gc
import os
import shutil
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.app import api_server
from agent.config import Config, load
from agent.model.snapshot import Known, Unavailable
from agent.sources.collector import Sources
from agent.sources.deadline import Deadline
from agent.sources.kube import credentials, list_watch
from agent.sources.kube.client import Api
from agent.sources.source_error import SourceError
from tests.builders import node
from tests.wire import CHUNKED, LAST_CHUNK, Answer, FakeServer, Request, http, kubeconfig, needs, until

PLUGIN = """#!/bin/sh
if [ -e {home}/hangs ]; then
    sleep 1000 &
    echo $$ $! >> {home}/processes
    sleep 1000
fi
echo '{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{"token":"secret"}}}}'
"""
EXEC = '{{exec: {{apiVersion: client.authentication.k8s.io/v1, command: "{}", interactiveMode: Never}}}}'


def answer(request: Request) -> Answer:
    """An API server without any object, for whoever has the token."""
    if request.headers.get("authorization") != "Bearer secret":
        return [http('{"message":"Unauthorized"}', "401 Unauthorized")]
    if request.watches:
        return [CHUNKED, LAST_CHUNK]
    return [http('{"metadata":{"resourceVersion":"5"},"items":[]}')]


class Hang:
    """A kubeconfig that cannot be read, until `end`."""

    def __init__(self, home: Path, url: str, kind: str) -> None:
        self.path, self._url, self._kind = home / "kubeconfig", url, kind
        self._plugin, self._token, self._hangs = home / "plugin", home / "token", home / "hangs"
        self._processes = home / "processes"
        self._plugin.write_text(PLUGIN.format(home=home))
        self._plugin.chmod(0o755)
        user = EXEC.format(self._plugin) if kind == "plugin" else f'{{tokenFile: "{self._token}"}}'
        kubeconfig(self.path, url, user=user)
        self._hangs.touch()
        self._token.write_text("secret")
        self._fifo = {"kubeconfig": self.path, "token": self._token}.get(kind)
        if self._fifo:
            self._content = self._fifo.read_text()
            self._fifo.unlink()
            os.mkfifo(self._fifo)

    def end(self) -> None:
        self._hangs.unlink(missing_ok=True)
        if self._fifo and self._fifo.is_fifo():
            hung = self._fifo.rename(self._fifo.with_suffix(".hung"))
            self._fifo.write_text(self._content)
            os.close(os.open(hung, os.O_RDWR))  # its reader gets as far as the end of the file

    @property
    def why(self) -> str:
        if self._kind == "plugin":
            return (
                f"API server: no credentials: the credential plugin of {self.path}: {self._plugin} hangs: killed after"
            )
        return f"API server: no credentials: reading {self.path}, and what it names, takes more than "

    def running(self) -> list[str]:
        """Return the processes of the plugin that are left."""
        started = self._processes.read_text().split() if self._processes.exists() else []
        return [pid for pid in started if Path(f"/proc/{pid}").exists() and _state(pid) != "Z"]


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def threads(name: str) -> int:
    return [thread.name for thread in threading.enumerate()].count(name)


@pytest.fixture(params=["plugin", "kubeconfig", "token"])
def hang(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
    monkeypatch.setattr(credentials, "PLUGIN_SECONDS", 0.3)
    monkeypatch.setattr(credentials, "_read", Deadline(f"credentials {tmp_path}", 1.0))
    monkeypatch.setattr(list_watch, "_BACKOFF", (0.05, 0.2))
    with FakeServer(answer) as server:
        one = Hang(tmp_path, server.url, request.param)
        try:
            yield one
        finally:
            one.end()
    gc.collect()


def config(hang: Hang) -> Config:
    given = {"node": "worker-1", "kubeconfig": str(hang.path), "api_timeout": "2s", "stale_after": "10s"}
    return load("run", given, {})


@contextmanager
def watching(hang: Hang) -> Iterator[tuple[Sources, Callable[[], int]]]:
    """Run the daemon's watches; yield the sources, and what counts how often they tried."""
    stop = threading.Event()
    sources, watches = api_server.watched(config(hang))
    running = [threading.Thread(target=watch.run, args=(stop,)) for watch in watches]
    for thread in running:
        thread.start()
    try:
        yield sources, lambda: sum(sum(watch.restarts.values()) for watch in watches)
    finally:
        hang.end()
        stop.set()
        for thread in running:
            thread.join()


def read(sources: Sources, name: str) -> object:
    return sources.readers[name](node())


def test_the_daemon_starts_says_what_hangs_and_recovers(hang: Hang) -> None:
    with watching(hang) as (sources, tries):
        until(lambda: tries() > 6, "both watches tried several times")
        for name in ("pods", "node"):
            reading = read(sources, name)
            assert isinstance(reading, Unavailable)
            assert reading.why.startswith(hang.why)
        assert threads(f"credentials {hang.path.parent}") == 1, "however often it was tried"
        assert len(hang.running()) <= 2, "the plugin and its child, if it is being tried"
        hang.end()
        until(lambda: isinstance(read(sources, "pods"), Known), "the pods are read")
        until(lambda: isinstance(read(sources, "node"), Known), "the Node is read")
    until(lambda: hang.running() == [], "no process of the plugin is left")


def test_a_command_says_what_hangs_and_reads_everything_else(hang: Hang) -> None:
    sources = api_server.asked_once(config(hang))
    assert {*sources.readers} == {"pods", "node"}, "the others are not requested"
    reading = read(sources, "pods")
    assert isinstance(reading, Unavailable)
    assert reading.why.startswith(hang.why)
    until(lambda: hang.running() == [], "no process of the plugin is left")


def test_a_token_whose_renewal_hangs_is_reported(hang: Hang) -> None:
    hang.end()
    api, ended = Api(hang.path, 2.0), threading.Event()
    try:
        api.get("/api/v1/pods")
        api._client.configuration.refresh_api_key_hook = lambda _: ended.wait(30)  # noqa: SLF001 (a minute later)
        with pytest.raises(
            SourceError, match=r"API server: no credentials: reading .* a file system or an identity provider hangs"
        ):
            api.get("/api/v1/pods")
        api._client.configuration.refresh_api_key_hook = None  # noqa: SLF001
        ended.set()
        until(lambda: answers(api), "it answers again")
    finally:
        ended.set()
        api.close()


def answers(api: Api) -> bool:
    try:
        return bool(api.get("/api/v1/pods"))
    except SourceError:
        return False


ASKING = """#!/bin/sh
if [ -t 0 ] || (: < /dev/tty) 2>/dev/null; then echo there is a terminal >&2; exit 3; fi
case "$KUBERNETES_EXEC_INFO" in *'"interactive": true'*) echo it may ask >&2; exit 4; esac
read -r answer || { echo "cannot ask for a password" >&2; exit 5; }
"""
ANSWERING = """#!/bin/sh
printf '{{"apiVersion":"%s","kind":"ExecCredential","status":{{"token":"secret"}}}}' "{version}"
"""
ENDLESS = """#!/bin/sh
yes {to}
"""


def plugin(home: Path, url: str, script: str, version: str = "v1") -> Path:
    """Return a kubeconfig with a plugin."""
    (home / "plugin").write_text(script)
    (home / "plugin").chmod(0o755)
    user = EXEC.format(home / "plugin").replace(".k8s.io/v1", f".k8s.io/{version}")
    return kubeconfig(home / "kubeconfig", url, user=user)


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_a_plugin_of_each_version_of_the_protocol_is_asked(tmp_path: Path, version: str) -> None:
    script = ANSWERING.format(version=f"client.authentication.k8s.io/{version}")
    with FakeServer(answer) as server:
        api = Api(plugin(tmp_path, server.url, script, version), 5.0)
        try:
            assert api.get("/api/v1/pods")
        finally:
            api.close()


GCP = """{{auth-provider: {{name: gcp, config: {{cmd-path: "{0}", cmd-args: config, \
token-key: "{{.credential.access_token}}", expiry-key: "{{.credential.token_expiry}}"}}}}}}"""
GCLOUD = """#!/bin/sh
echo '{"credential":{"access_token":"secret","token_expiry":"2100-01-01T00:00:00Z"}}'
"""


@pytest.mark.parametrize("hangs", [False, True])
def test_the_command_of_an_old_auth_provider_is_bounded_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    monkeypatch.setattr(credentials, "PLUGIN_SECONDS", 0.3 if hangs else 30.0)
    script = tmp_path / "gcloud"
    script.write_text("#!/bin/sh\nsleep 1000\n" if hangs else GCLOUD)
    script.chmod(0o755)
    with FakeServer(answer) as server:
        path = kubeconfig(tmp_path / "kubeconfig", server.url, user=GCP.format(script))
        if hangs:
            with pytest.raises(SourceError, match=r"gcloud hangs: killed after 0\.3 s"):
                Api(path, 5.0)
        else:
            api = Api(path, 5.0)
            assert api.get("/api/v1/pods")
            api.close()


@pytest.mark.parametrize("to", ["", ">&2"], ids=["output", "errors"])
def test_a_plugin_that_prints_without_end_is_killed(tmp_path: Path, to: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(SourceError) as raised:
            Api(plugin(tmp_path, "http://127.0.0.1:1", ENDLESS.format(to=to)), 5.0)
        assert tracemalloc.get_traced_memory()[1] < 8 * credentials.LARGEST_PLUGIN_OUTPUT
    finally:
        tracemalloc.stop()
    start = f"API server: no credentials: the credential plugin of {tmp_path}/kubeconfig: {tmp_path}/plugin "
    assert str(raised.value) == f"{start}prints more than 1,048,576 bytes, and was killed"


def test_a_plugin_cannot_ask_a_person(tmp_path: Path) -> None:
    """Although the command prints to a real terminal, on which the plugin could ask, and wait."""
    terminal = shutil.which("script")
    needs(terminal is not None, "script (util-linux), to make a terminal")
    path = plugin(tmp_path, "http://127.0.0.1:1", ASKING)
    code = f"import pathlib, agent.sources.kube.client as it; it.Api(pathlib.Path('{path}'), 5)"
    done = subprocess.run(  # noqa: S603 (ours)
        [str(terminal), "-qec", f'{sys.executable} -c "{code}"', "/dev/null"],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert "process returned 5. cannot ask for a password" in done.stdout, done.stdout
