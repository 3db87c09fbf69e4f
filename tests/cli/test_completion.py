"""What a shell offers on a command line of nodeleak."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from agent.cli.parser import COMMANDS
from tests.cli.commands import nodeleak
from tests.cli.test_explain import WORDS
from tests.wire import needs

BASH = """\
source /dev/stdin <<<"$SCRIPT"
COMP_LINE=$1 COMP_POINT=${#1}
compopt() { echo "files"; }
_nodeleak
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """\
compdef() { :; }
_describe() { printf '%s\\n' "${(P@)2}"; }
_files() { echo files; }
eval "$SCRIPT"
words=("${(@s: :)1}")
CURRENT=${#words}
_nodeleak
"""
FISH = """\
echo $SCRIPT | string collect | source
complete --do-complete $argv[1]
"""


def offered(*words: str) -> list[str]:
    done = nodeleak("__complete", *words)
    assert (done.code, done.err) == (0, "")
    *lines, files = done.out.splitlines()
    assert files in {":0", ":4"}
    return [line.partition("\t")[0] for line in lines] + ["FILES"] * (files == ":0")


def test_commands_options_and_values_are_offered() -> None:
    assert offered("") == offered() == list(COMMANDS)
    assert offered("re") == offered("help", "re") == ["restore", "resume", "record"]
    assert offered("scna", "") == offered("version", "") == offered("scan", "--frob=") == []
    assert offered("scan", "-o", "") == ["table", "wide", "name", "json", "yaml"]
    assert offered("scan", "--output=js") == ["--output=json"]
    assert offered("run", "--runtime", "d") == ["docker"]
    assert offered("completion", "") == ["bash", "zsh", "fish"]
    assert offered("explain", "exhausted_") == ["exhausted_range"]
    assert {*WORDS["finding"], *WORDS["metric"]} <= {*offered("explain", "")}


def test_an_option_is_offered_once_and_a_rare_one_to_those_who_began_it() -> None:
    options = offered("clean", "--")
    assert {"--apply", "--output", "--ip", "--node"} <= {*options}
    assert "--docker-host" not in options
    assert offered("clean", "--docker-h") == ["--docker-host"]
    later = offered("clean", "--apply", "--ip", "10.244.1.9", "-o", "json", "--")
    assert {*options} - {*later} == {"--apply", "--output"}


def test_files_are_left_to_the_shell() -> None:
    assert offered("scan", "--kubeconfig", "/etc/ku") == ["FILES"]
    assert offered("scan", "--recording", "one.json", "") == ["FILES"]
    assert offered("scan", "--exit-code", "") == []


def in_shell(shell: str, program: str, line: str, directory: Path) -> list[str]:
    wrapper = directory / "nodeleak"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m agent "$@"\n')
    wrapper.chmod(0o755)
    environment = os.environ | {
        "PATH": f"{directory}{os.pathsep}{os.environ['PATH']}",
        "SCRIPT": nodeleak("completion", shell).out,
        "HOME": str(directory),
    }
    command = [shell, "-c", program, *([] if shell == "fish" else [shell]), line]
    done = subprocess.run(  # noqa: S603 (ours)
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == "", done
    return [line.replace("\t", ":") for line in done.stdout.splitlines()]


def test_the_script_of_bash_completes(tmp_path: Path) -> None:
    needs(shutil.which("bash") is not None, "bash")
    assert in_shell("bash", BASH, "nodeleak reco", tmp_path) == ["record"]
    # Bash replaces what follows `=`, where it breaks words.
    assert in_shell("bash", BASH, "nodeleak scan --output=js", tmp_path) == ["json"]
    assert in_shell("bash", BASH, "nodeleak journal -o ", tmp_path) == ["table", "json", "yaml"]
    assert "files" in in_shell("bash", BASH, "nodeleak scan --kubeconfig ", tmp_path)


def test_the_scripts_of_zsh_and_fish_complete(tmp_path: Path) -> None:
    for shell, program in (("zsh", ZSH), ("fish", FISH)):
        needs(shutil.which(shell) is not None, shell)
        (line,) = in_shell(shell, program, "nodeleak reco", tmp_path)
        assert line == f"record:{COMMANDS['record']}"
        found = in_shell(shell, program, "nodeleak journal -o ", tmp_path)
        assert sorted(found) == ["json", "table", "yaml"]
