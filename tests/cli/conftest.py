"""Commands that run in this process change its state."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands import SmallNode, engine
from tests.wire import FakeServer, needs


@pytest.fixture(autouse=True)
def _restore_process() -> Iterator[None]:
    """Restore the handler of SIGTERM."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def read_only() -> tuple[str, ...]:
    """Return what runs a command with no place to write to."""
    needs(os.geteuid() == 0, "root, to make every mount read-only in a namespace of its own")
    script = """
        mount --make-rprivate /
        awk '{ print $5 }' /proc/self/mountinfo | while read -r at; do mount -o remount,bind,ro "$at" 2>/dev/null; done
        if touch /tmp/x /dev/shm/x /run/x 2>/dev/null; then echo "still writable" >&2; exit 99; fi
        exec "$@"
    """
    return ("unshare", "-m", "/bin/sh", "-c", script, "sh")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[SmallNode]:
    with FakeServer(engine, at=tmp_path / "docker.sock") as docker:
        yield SmallNode(tmp_path, docker)
