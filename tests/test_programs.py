"""Every program of the repository starts: each once lost the line that calls its main function."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("bench", "demo", "fuzz", "measures", "screenshots", "stress", "stress.soak")
SCRIPTS = ("cluster", "image")


def test_programs_and_scripts_print_their_help() -> None:
    commands = [[sys.executable, "-m", f"tests.{program}", "--help"] for program in PROGRAMS]
    for command in [*commands, *([str(ROOT / "hack" / script), "--help"] for script in SCRIPTS)]:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 (our own)
        assert (done.returncode, done.stderr) == (0, ""), command
        assert "hack/" in done.stdout or "usage: " in done.stdout
