"""The tables of scan as a process: on terminals of some widths and in a pipe, sorted, wide, and as names."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from tests.cli.test_map import INCIDENT, SILENT, environment, scan
from tests.wire import until


def at_a_terminal(columns: int, *arguments: str) -> list[str]:
    """Return the lines of the output on a terminal that is so wide; 0: it does not say how wide it is."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    output = b""

    def over() -> bool:
        nonlocal output
        try:
            output += os.read(ours, 65536)
        except OSError:
            return True  # so a terminal reports that it is closed
        return False

    command = [sys.executable, "-m", "agent", "scan", f"--recording={INCIDENT}", *arguments]
    with subprocess.Popen(command, env=environment(), stdout=theirs, stdin=subprocess.DEVNULL):  # noqa: S603 (ours)
        os.close(theirs)
        until(over, "the report is printed")
    os.close(ours)
    return output.decode().splitlines()


def rows(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith(("NETWORK", "kubenet"))]


def test_on_a_terminal_rows_are_one_line_and_elsewhere_whole() -> None:
    piped = rows(scan("-v").stdout.splitlines())
    assert max(map(len, piped)) > 120
    assert not any("…" in line for line in piped)
    for columns in (80, 100):
        shown = rows(at_a_terminal(columns, "-v"))
        assert len(shown) == len(piped)
        assert 60 < max(map(len, shown)) <= columns
    assert rows(at_a_terminal(500, "-v")) == rows(at_a_terminal(0, "-v")) == piped


def test_wide_is_whole_on_any_terminal() -> None:
    assert rows(at_a_terminal(80, "-o", "wide")) == rows(scan("-o", "wide").stdout.splitlines())


def test_names_go_to_a_script_and_what_is_missing_to_standard_error() -> None:
    done = scan("-o", "name")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "kubenet/10.253.6.130"
    done = scan("-o", "name", recording=SILENT)
    assert done.returncode == 3
    assert done.stdout.splitlines()[-2:] == ["kubenet/10.244.1.9", "kubenet/10.244.1.10"]
    assert done.stderr == (
        "nodeleak: 6 of 16 checks could not run: cannot connect to docker at /var/run/docker.sock: connection refused\n"
    )


def test_addresses_are_sorted_as_the_user_says() -> None:
    pods = [line.split()[5] for line in rows(scan("-v", "--sort-by=pod").stdout.splitlines())[3:]]
    assert pods == sorted(pods)
    assert len(set(pods)) == 7


@pytest.mark.parametrize("other", ["-o wide", "-o name", "--sort-by=age"])
def test_the_map_is_no_table(other: str) -> None:
    done = scan("--map", *other.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"nodeleak: --map and {other.partition('=')[0]} cannot be combined: remove one of them\n"


def test_json_has_an_order_of_its_own() -> None:
    done = scan("-o", "json", "--sort-by", "age")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "nodeleak: --sort-by and -o json cannot be combined: remove one of them\n"
