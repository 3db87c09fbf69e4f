"""scan --map as a process: on a terminal, in a pipe, and in an ASCII locale."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.wire import until

INCIDENT = Path(__file__).parents[1] / "nodes" / "incident.json"
SILENT = INCIDENT.with_name("docker-silent.json")


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NODELEAK", "LC_", "NO_COLOR"))}
    return kept | {"LANG": "C.UTF-8", "TERM": "xterm", **more}


def scan(*arguments: str, recording: Path = INCIDENT, **more: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "agent", "scan", f"--recording={recording}", *arguments]
    return subprocess.run(  # noqa: S603 (ours)
        command, env=environment(**more), capture_output=True, encoding="utf-8", check=False
    )


def at_a_terminal(**more: str) -> str:
    """Return the output on a terminal."""
    ours, theirs = pty.openpty()
    output = b""

    def over() -> bool:
        nonlocal output
        try:
            output += os.read(ours, 65536)
        except OSError:
            return True  # so a terminal reports that it is closed
        return False

    command = [sys.executable, "-m", "agent", "scan", "--map", f"--recording={INCIDENT}"]
    with subprocess.Popen(command, env=environment(**more), stdout=theirs, stdin=subprocess.DEVNULL):  # noqa: S603 (ours)
        os.close(theirs)
        until(over, "the map is drawn")
    os.close(ours)
    return output.decode()


def test_a_recording_is_drawn_as_a_map() -> None:
    done = scan("--map")
    assert (done.returncode, done.stderr) == (0, "")
    assert "  10.253.6.128    G L L L ■ L L ■ ■ ■ ■ ■ ■ ■ ■\n" in done.stdout
    assert "  L   7 leaked\n" in done.stdout
    assert "\x1b" not in done.stdout


def test_the_exit_codes_are_those_of_a_scan() -> None:
    assert scan("--map", "--exit-code").returncode == 1
    assert scan("--map", recording=SILENT).returncode == 3


def test_the_map_is_not_verbose() -> None:
    done = scan("--map", "-v")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "nodeleak: --map and -v cannot be combined: remove one of them\n"


def test_map_and_json_exclude_each_other() -> None:
    done = scan("--map", "-o", "json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ("nodeleak: --map and -o json cannot be combined: remove one of them\n")
    assert json.loads(scan("-o", "json").stdout)["schema"] == "nodeleak.scan/v1"


def test_an_ascii_output_has_ascii_marks() -> None:
    done = scan("--map", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert "G L L L o L L o" in done.stdout


def test_a_terminal_has_colors() -> None:
    assert "\x1b[1;37;41mL\x1b[0m" in at_a_terminal()


@pytest.mark.parametrize("plain", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colors_can_be_disabled(plain: dict[str, str]) -> None:
    output = at_a_terminal(**plain)
    assert "\x1b" not in output
    assert "L L L" in output


def test_control_characters_of_a_recording_are_not_printed(tmp_path: Path) -> None:
    sent = tmp_path / "sent.json"
    for recording in (INCIDENT, SILENT):
        sent.write_text(recording.read_text().replace('"kubenet"', r'"kube\u001b]0;x\u0007net"'))
        done = scan("--map", recording=sent)
        assert r"kube\x1b]0;x\x07net 10.2" in done.stdout
        assert "\x1b" not in done.stdout
