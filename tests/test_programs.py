"""Every program of the repository starts: each once lost the line that calls its main function. The demo runs."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.processes import environment

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("bench", "demo", "fuzz", "measures", "screenshots", "stress", "stress.soak")
SCRIPTS = ("cluster", "image")


def test_programs_and_scripts_print_their_help() -> None:
    commands = [[sys.executable, "-m", f"tests.{program}", "--help"] for program in PROGRAMS]
    for command in [*commands, *([str(ROOT / "hack" / script), "--help"] for script in SCRIPTS)]:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 (our own)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert "hack/" in done.stdout or "usage: " in done.stdout


def test_the_demo_releases_the_leaks_and_removes_its_directory() -> None:
    with tempfile.TemporaryDirectory(
        prefix="nd-"
    ) as directory:  # a short path: the demo makes sockets below it
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
