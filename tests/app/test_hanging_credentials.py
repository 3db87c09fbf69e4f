"""Credentials that hang: files on which opening does not return, as on a hung file system."""

import gc
import os
import threading
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
from tests.wire import CHUNKED, LAST_CHUNK, Answer, FakeServer, Request, http, kubeconfig, until

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
        self.path, token = home / "kubeconfig", home / "token"
        kubeconfig(self.path, url, user=f'{{tokenFile: "{token}"}}')
        token.write_text("secret")
        self._fifo = {"kubeconfig": self.path, "token": token}[kind]
        self._content = self._fifo.read_text()
        self._fifo.unlink()
        os.mkfifo(self._fifo)

    def end(self) -> None:
        if self._fifo.is_fifo():
            hung = self._fifo.rename(self._fifo.with_suffix(".hung"))
            self._fifo.write_text(self._content)
            os.close(os.open(hung, os.O_RDWR))  # its reader gets as far as the end of the file

    @property
    def why(self) -> str:
        return f"API server: no credentials: reading {self.path}, and what it names, takes more than "


def threads(name: str) -> int:
    return [thread.name for thread in threading.enumerate()].count(name)


@pytest.fixture(params=["kubeconfig", "token"])
def hang(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hang]:
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
        hang.end()
        until(lambda: isinstance(read(sources, "pods"), Known), "the pods are read")
        until(lambda: isinstance(read(sources, "node"), Known), "the Node is read")


def test_a_command_says_what_hangs_and_reads_everything_else(hang: Hang) -> None:
    sources = api_server.asked_once(config(hang))
    assert {*sources.readers} == {"pods", "node"}, "the others are not requested"
    reading = read(sources, "pods")
    assert isinstance(reading, Unavailable)
    assert reading.why.startswith(hang.why)


def test_a_token_whose_renewal_hangs_is_reported(hang: Hang) -> None:
    hang.end()
    api, ended = Api(hang.path, 2.0), threading.Event()
    try:
        api.get("/api/v1/pods")
        api._client.configuration.refresh_api_key_hook = lambda _: ended.wait(30)  # noqa: SLF001 (a minute later)
        with pytest.raises(
            SourceError,
            match=r"API server: no credentials: reading .* .* hangs",
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


ANSWERING = """#!/bin/sh
printf '{{"apiVersion":"%s","kind":"ExecCredential","status":{{"token":"secret"}}}}' "{version}"
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
