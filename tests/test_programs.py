"""Every program of the repository starts: each once lost the line that calls its main function."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("program", ["bench", "demo", "fuzz", "measures", "scale", "screenshots", "soak", "stress"])
def test_a_program_prints_its_help(program: str) -> None:
    command = [sys.executable, "-m", f"tests.{program}", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 (our own)
    assert (done.returncode, done.stderr) == (0, "")
    assert "hack/" in done.stdout or "usage: " in done.stdout


@pytest.mark.parametrize("script", ["cluster", "image"])
def test_a_script_prints_its_help(script: str) -> None:
    done = subprocess.run(  # noqa: S603 (our own)
        [ROOT / "hack" / script, "--help"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: hack/{script}")


def test_scripts_stay_short() -> None:
    files = [path for path in (ROOT / "hack").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    written = [path for path in files if path.name not in {"go.mod", "go.sum"}]  # go writes these
    assert sum(len(path.read_text().splitlines()) for path in written) <= 2600
