"""The daemon while the disk of its state directory is full, or hangs: a real tmpfs, and a FUSE that stops answering."""

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

from tests.cleanup.slow_disk import slow_disk
from tests.cli.test_failures import LEAKED, Daemon, SmallNode, engine, running, served
from tests.wire import Answer, FakeServer, Request, http, needs, until

# Holds a mount namespace. "full": a tmpfs without space; "hang": a file system that nobody serves; "end": as before.
HOLDER = r"""
import ctypes, os, sys
libc, at, fuse = ctypes.CDLL(None, use_errno=True), sys.argv[1].encode(), -1
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
    elif line == "hang\n":
        fuse = os.open("/dev/fuse", os.O_RDWR)
        mount(b"fuse", f"fd={fuse},rootmode=40000,user_id=0,group_id=0")
    elif line == "end\n":
        libc.umount2(at, 2)
        os.close(fuse)
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
    needs(os.geteuid() == 0 and tools and Path("/dev/fuse").exists(), "root, util-linux and /dev/fuse, to mount disks")
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
    try:
        code, body = served(port, "/api/v1/status")
    except TimeoutError:  # it waits once for the disk too
        return {}
    return {one["source"]: one["why"] for one in json.loads(body)["unavailable"]} if code == 200 else {"status": body}


def threads(agent: Daemon) -> int:
    return len(list(Path(f"/proc/{agent.process.pid}/task").iterdir()))


def check_reported(agent: Daemon, port: int, why: str) -> None:
    """In the status, the log and the metrics; and everything else goes on."""
    until(lambda: unavailable(port).get("state") == why, f"the status says {why}, not {unavailable(port)}")
    assert why in [one["why"] for one in agent.events if one["event"] == "source.unavailable"]
    until(lambda: 'nodeleak_source_up{source="state"} 0.0' in served(port, "/metrics")[1], "the metrics say so")
    before, at_work = syncs(port), threads(agent)
    until(lambda: syncs(port) > before + 5, "syncs go on")
    assert threads(agent) <= at_work
    assert served(port, "/healthz")[0] == 200
    assert "10.244.1.9" in served(port, "/")[1]
    assert 'nodeleak_reservations{network="kubenet",state="leaked"} 1.0' in served(port, "/metrics")[1]


def check_recovered(agent: Daemon, port: int) -> None:
    until(lambda: "state" not in unavailable(port), "the source is available again")
    assert "state" in [one["source"] for one in agent.events if one["event"] == "source.recovered"]


def test_a_disk_that_hangs_is_reported_and_delays_one_sync(node: SmallNode, disk: Disk) -> None:
    options = ("--cleanup=dry-run", "--cleanup-network=kubenet", "--probe=off")
    with daemon(node, disk, *options) as (agent, port):
        until(lambda: syncs(port) > 2, "it syncs")
        assert "state" not in unavailable(port)
        disk.make("hang")
        check_reported(agent, port, f"{node.home}/state: no answer for 5 s: its disk hangs")
        disk.make("end")
        check_recovered(agent, port)
        assert agent.end()[0] == 0


def test_a_daemon_starts_while_the_disk_hangs(node: SmallNode, disk: Disk) -> None:
    disk.make("hang")
    with daemon(node, disk) as (agent, port):
        check_reported(agent, port, f"{node.home}/state: no answer for 5 s: its disk hangs")
        disk.make("end")
        check_recovered(agent, port)


def test_a_full_disk_is_reported(node: SmallNode, disk: Disk) -> None:
    disk.make("full")
    with daemon(node, disk) as (agent, port):
        check_reported(agent, port, f"{node.home}/state: no space left on device")
        disk.make("free")
        check_recovered(agent, port)


def without_the_leak(request: Request) -> Answer:
    if LEAKED in request.path:
        return [http(json.dumps({"message": f"No such container: {LEAKED}"}), "404 Not Found")]
    return engine(request)


def test_a_daemon_goes_on_while_an_entry_is_being_written(node: SmallNode, disk: Disk) -> None:
    leak, state, behind = node.home / "networks/kubenet/10.244.1.9", node.home / "state", node.home / "behind"
    behind.mkdir()
    node.docker.answers = without_the_leak
    options = ("--cleanup=auto", "--cleanup-network=kubenet", "--probe=off", "--settle=0s", "--max-share=100%")
    with slow_disk(state, behind, *disk.prefix) as slow:
        (behind / "journal").mkdir()
        slow.hang("fsync")  # the journal is the first that is synced
        with daemon(node, disk, *options) as (agent, port):
            slow.wait()
            check_reported(agent, port, f"{state}: no answer for 5 s: its disk hangs")
            assert leak.exists()
            slow.go()
            check_recovered(agent, port)
            until(lambda: not leak.exists(), "the address is released")
            assert agent.end()[0] == 0
        lines = (behind / "journal/journal.jsonl").read_text().splitlines()
    why = "this release was interrupted; all reservations are in place"
    ends = [one for one in map(json.loads, lines) if "ended" in one]
    assert [(one["outcome"], one["why"]) for one in ends] == [("failed", why), ("released", "")]
