"""The demo shows what it says, and leaves nothing behind."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.processes import environment

ROOT = Path(__file__).resolve().parents[1]


def test_the_demo_releases_the_leaks_and_removes_its_directory() -> None:
    with tempfile.TemporaryDirectory(prefix="nd-") as directory:  # a short path: the demo makes sockets below it
        done = subprocess.run(
            [sys.executable, "-m", "tests.demo"],
            cwd=ROOT,
            env=environment(TMPDIR=directory),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for shown in ("7 leaked", "7 would be released", "7 released", "restored: 10."):
            assert shown in done.stdout
        assert list(Path(directory).iterdir()) == []
