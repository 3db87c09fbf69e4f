"""The demo works, and writes only to its own directory."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import environment

ROOT = Path(__file__).resolve().parents[1]

AUDIT_HOOK = """
import os, sys

LOG = os.open(os.environ["WRITES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
PATHS = {"os.mkdir": 1, "os.remove": 1, "os.rmdir": 1, "os.truncate": 1, "os.chmod": 1, "os.utime": 1,
         "os.rename": 2, "os.link": 2, "os.symlink": 2}
OPEN_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

def hook(event, args):
    if event == "open":
        paths = args[:1] if (args[2] or 0) & OPEN_WRITES else ()
    else:
        paths = args[:PATHS.get(event, 0)]
    for path in paths:
        if isinstance(path, (str, bytes)):
            os.write(LOG, os.fsencode(path) + b"\\n")

sys.addaudithook(hook)
"""
"""Runs in every Python process of the demo, the agent included, and logs each path that is written or changed."""


@pytest.fixture
def temporary() -> Iterator[Path]:
    """Return a directory with a short path: the demo makes sockets below it."""
    with tempfile.TemporaryDirectory(prefix="nd-") as directory:
        yield Path(directory)


def test_the_demo_writes_only_to_its_own_directory(tmp_path: Path, temporary: Path) -> None:
    writes = tmp_path / "writes"
    (tmp_path / "sitecustomize.py").write_text(AUDIT_HOOK)
    done = subprocess.run(
        [sys.executable, "-m", "tests.demo"],
        cwd=ROOT,
        env=environment(
            PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}",
            PYTHONDONTWRITEBYTECODE="1",
            TMPDIR=str(temporary),
            WRITES=str(writes),
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "7 released" in done.stdout
    assert list(temporary.iterdir()) == []

    # Paths relative to an open directory have no leading slash; the directory itself was opened by a listed path.
    paths = {path for path in writes.read_text().splitlines() if path.startswith("/")}
    assert any("/var/lib/nodeleak/" in path for path in paths), (
        "the state directory was not written: the hook missed it"
    )
    outside = {
        path for path in paths if not path.startswith((str(temporary), "/dev/", "/proc/self/fd/", "/proc/self/net/dev"))
    }
    assert outside == set()
