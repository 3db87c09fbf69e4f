"""completion: what a real bash completes with the script, and the error without the package that writes it."""

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


def test_bash_completes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs(find_spec("shtab") is not None, "the package shtab")
    assert main(["completion", "bash"]) == DONE
    script = tmp_path / "nodeleak.bash"
    script.write_text(capsys.readouterr().out)
    for line, expected in {
        "nodeleak cle": {"clean"},
        "nodeleak ": {*COMMANDS},
        "nodeleak clean --cleanup": {"--cleanup-network"},
        "nodeleak scan --output ": {"table", "wide", "name", "json"},
        "nodeleak scan --sort-by ": {"ip", "age", "state", "cause", "pod"},
        "nodeleak run --cleanup ": {"off", "dry-run", "auto"},
        "nodeleak explain leaked_r": {"leaked_reservation"},
        "nodeleak completion ": {"bash", "zsh"},
        f"nodeleak scan --recording {script.with_name('nodeleak.b')}": {str(script)},
    }.items():
        done = subprocess.run(  # noqa: S603 (bash, with our own words)
            ["/bin/bash", "-c", _COMPLETE, "bash", script, *line.split(" ")], capture_output=True, text=True, check=True
        )
        assert set(done.stdout.split()) == expected, line


def test_zsh_has_a_script_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    needs(find_spec("shtab") is not None, "the package shtab")
    assert main(["completion", "zsh"]) == DONE
    assert capsys.readouterr().out.startswith("#compdef nodeleak\n")


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
