"""completion: what a real bash completes with the script, and the error without the package that writes it."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from agent.cli import main
from agent.cli.exit_codes import DONE, USAGE
from agent.cli.parser import COMMANDS
from tests.wire import needs

_COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
_shtab_nodeleak nodeleak "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    needs(find_spec("shtab") is not None, "the package shtab")
    assert main(["completion", "bash"]) == DONE
    path = tmp_path / "nodeleak.bash"
    path.write_text(capsys.readouterr().out)
    return path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("nodeleak cle", {"clean"}),
        ("nodeleak ", {*COMMANDS, "help"}),
        ("nodeleak help ti", {"timeline"}),
        ("nodeleak clean --cleanup", {"--cleanup-network"}),
        ("nodeleak scan --output ", {"table", "wide", "name", "json"}),
        ("nodeleak scan -o w", {"wide"}),
        ("nodeleak scan --sort-by ", {"ip", "age", "state", "cause", "pod"}),
        ("nodeleak run --cleanup ", {"off", "dry-run", "auto"}),
        ("nodeleak explain leaked_r", {"leaked_reservation"}),
        ("nodeleak completion ", {"bash", "zsh"}),
    ],
)
def test_bash_completes(line: str, expected: set[str], script: Path) -> None:
    words = line.split(" ")
    done = subprocess.run(  # noqa: S603 (bash, with our own words)
        ["/bin/bash", "-c", _COMPLETE, "bash", script, *words], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == expected, done


def test_bash_completes_files(script: Path) -> None:
    words = ["nodeleak", "scan", "--recording", str(script.with_name("nodeleak.b"))]
    done = subprocess.run(  # noqa: S603 (as above)
        ["/bin/bash", "-c", _COMPLETE, "bash", script, *words], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(script)]


def test_zsh_has_a_script_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    needs(find_spec("shtab") is not None, "the package shtab")
    assert main(["completion", "zsh"]) == DONE
    page = capsys.readouterr().out
    assert page.startswith("#compdef nodeleak\n")
    assert {f"{name}:" for name in COMMANDS} <= set(re.findall(r"\w+:", page))


def test_without_the_package_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "nodeleak: completion needs the Python package shtab, which is not installed\n"
        "run 'python -m pip install shtab' with the Python that runs nodeleak\n"
    )
