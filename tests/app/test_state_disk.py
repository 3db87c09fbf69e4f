"""The daemon while the disk of its state directory is full: a real tmpfs."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.commands import Daemon, SmallNode, engine, running, served
from tests.wire import FakeServer, needs, until

# Holds a mount namespace. "full": a tmpfs without space.
HOLDER = r"""
import ctypes, os, sys
libc, at = ctypes.CDLL(None, use_errno=True), sys.argv[1].encode()
def mount(kind, options):
    if libc.mount(kind, at, kind, 0, options.encode()):
        raise OSError(ctypes.get_errno(), kind)
for line in sys.stdin:
    if line == "full\n":
        mount(b"tmpfs", "size=64k")
        try:
            with open(at + b"/filled", "wb", 0) as file:
                while True:
                    file.write(bytes(1024))
        except OSError:
            pass
    elif line == "free\n":
        os.unlink(at + b"/filled")
    print("done", flush=True)
"""


class Disk:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.prefix = ("nsenter", f"--target={process.pid}", "--mount", "--")

    def make(self, state: str) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{state}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    with FakeServer(engine, at=tmp_path / "docker.sock") as docker:
        yield SmallNode(tmp_path, docker)


@pytest.fixture
def disk(node: SmallNode) -> Iterator[Disk]:
    tools = all(shutil.which(tool) for tool in ("unshare", "nsenter"))
    needs(os.geteuid() == 0 and tools, "root and util-linux, to mount disks")
    state = node.home / "state"
    state.mkdir()
    command = ("unshare", "--mount", "--propagation=private", sys.executable, "-c", HOLDER, str(state))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            one = Disk(process)
            one.make("begin")  # so that it has its namespace
            yield one
        finally:
            process.kill()


@contextmanager
def daemon(node: SmallNode, disk: Disk, *options: str) -> Iterator[tuple[Daemon, int]]:
    quick = ("--api=off", "--listen=127.0.0.1:0", "--interval=200ms", "--confirm-after=100ms", *options)
    (node.home / "device-plugins").mkdir()
    with running(*node.options, *quick, prefix=disk.prefix) as agent:
        yield agent, agent.log_event("agent.started")["port"]


def syncs(port: int) -> float:
    found = re.search(r"^nodeleak_sync_seconds_count (\S+)$", served(port, "/metrics")[1], re.MULTILINE)
    return float(found[1]) if found else 0


def unavailable(port: int) -> dict[str, str]:
    code, body = served(port, "/api/v1/status")
    return {one["source"]: one["why"] for one in json.loads(body)["unavailable"]} if code == 200 else {"status": body}


def check_reported(agent: Daemon, port: int, why: str) -> None:
    """In the status, the log and the metrics; and everything else goes on."""
    until(lambda: unavailable(port).get("state") == why, f"the status says {why}, not {unavailable(port)}")
    assert why in [one["why"] for one in agent.events if one["event"] == "source.unavailable"]
    until(lambda: 'nodeleak_source_up{source="state"} 0.0' in served(port, "/metrics")[1], "the metrics say so")
    before = syncs(port)
    until(lambda: syncs(port) > before + 5, "syncs go on")
    assert served(port, "/healthz")[0] == 200
    assert "10.244.1.9" in served(port, "/")[1]
    assert 'nodeleak_reservations{network="kubenet",state="leaked"} 1.0' in served(port, "/metrics")[1]


def check_recovered(agent: Daemon, port: int) -> None:
    until(lambda: "state" not in unavailable(port), "the source is available again")
    assert "state" in [one["source"] for one in agent.events if one["event"] == "source.recovered"]


def test_a_full_disk_is_reported(node: SmallNode, disk: Disk) -> None:
    disk.make("full")
    with daemon(node, disk) as (agent, port):
        check_reported(agent, port, f"{node.home}/state: no space left on device")
        disk.make("free")
        check_recovered(agent, port)
