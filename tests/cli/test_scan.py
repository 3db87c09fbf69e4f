"""scan of a recording, which needs no node: exit codes, tables and the map, in a pipe and on terminals."""

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from agent.model.documents import Recording, dumps
from agent.model.snapshot import Snapshot
from tests.builders import (
    CIDR,
    GRACE,
    cni_result,
    node,
    reservation,
    unrecognized,
    without,
    without_api,
)
from tests.cli.commands import DONE, FOUND, UNAVAILABLE, USAGE, Done, environment, nodeleak
from tests.wire import until

INCIDENT = Path(__file__).parents[1] / "nodes" / "incident.json"
SILENT = INCIDENT.with_name("docker-silent.json")
LEAK = reservation("10.244.1.9")
Recorded = Callable[..., str]


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    def write(*snapshots: Snapshot) -> str:
        path = tmp_path / "node.json"
        path.write_text(
            dumps(Recording(grace=GRACE, confirm_after=timedelta(0), snapshots=snapshots))
        )
        return str(path)

    return write


def scan(*arguments: str, recording: object = INCIDENT, code: int = DONE) -> Done:
    done = nodeleak("scan", "--recording", str(recording), *arguments)
    assert done.code == code, done
    return done


def at_a_terminal(*arguments: str, columns: int = 100, more: dict[str, str] | None = None) -> str:
    """Return the output on a terminal that is so wide; 0: it does not say how wide it is."""
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
    env = environment({"LANG": "C.UTF-8", "TERM": "xterm", **(more or {})})
    with subprocess.Popen(command, env=env, stdout=theirs, stdin=subprocess.DEVNULL):  # noqa: S603 (ours)
        os.close(theirs)
        until(over, "the report is printed")
    os.close(ours)
    return output.decode()


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(("NETWORK", "kubenet"))]


def test_recordings_need_no_node_and_no_setting_but_grace_and_of_several_the_worst_decides(
    recorded: Recorded,
) -> None:
    path = recorded(node(LEAK), node(LEAK, later=timedelta(seconds=1)))
    assert "leaked_reservation: 10.244.1.9 is reserved for container" in scan(recording=path).said
    tree = json.loads(scan("-o", "json", recording=path).out)
    assert tree["schema"] == "nodeleak.scan/v1"
    assert [finding["subject"] for finding in tree["findings"]] == ["kubenet/10.244.1.9"]
    piped = nodeleak("scan", "--recording", "-", given=Path(path).read_text())
    assert piped.out == scan(recording=path).out
    assert "OK: no findings" in scan("--grace", "3h", recording=path).said
    wrong = scan("--grace", "3", recording=path, code=USAGE)
    assert (
        wrong.err == 'nodeleak: --grace: invalid value "3": expected a duration such as 90s or 5m\n'
    )
    other = scan("--node=x", "--docker-timeout=1s", recording=path, code=USAGE)
    assert other.err.startswith(
        "nodeleak: --node, --docker-timeout cannot be combined with --recording"
    )
    files = [str(INCIDENT), str(SILENT)]
    done = nodeleak("scan", "--recording", *files)
    assert done.code == UNAVAILABLE
    assert done.out == "\n".join(
        f"==> {file} <==\n{nodeleak('scan', '--recording', file).out}" for file in files
    )
    documents = nodeleak("scan", "-o", "json", "--recording", *files).out
    assert documents == "".join(
        nodeleak("scan", "-o", "json", "--recording", file).out for file in files
    )
    assert nodeleak("scan", "--recording", files[0], "gone.json").err.count("gone.json") == 1
    tree = json.loads(Path(path).read_text())
    tree["snapshots"][1]["uptime"] = 1e13
    absurd = nodeleak("scan", "--recording=-", given=json.dumps(tree))
    complaint = "recording.snapshots[1].uptime: 10000000000000.0 is out of range"
    assert (absurd.code, absurd.out) == (USAGE, "")
    assert absurd.err == f'nodeleak: cannot read recording "-": {complaint}\n'


def test_exit_codes(recorded: Recorded) -> None:
    for snapshot, code in (
        (node(), DONE),
        (node(LEAK), FOUND),
        (without_api(node()), DONE),
        (without_api(node(LEAK)), FOUND),
        (without(node(), "containers"), UNAVAILABLE),
        (without(node(LEAK), "pods"), UNAVAILABLE),
        (without(node(LEAK), "cni_results"), UNAVAILABLE),
    ):
        path = recorded(snapshot, snapshot)
        assert scan("--exit-code", recording=path, code=code).err == ""
        scan(recording=path, code=UNAVAILABLE if code == UNAVAILABLE else DONE)
        scan("--map", "--exit-code", recording=path, code=code)


def test_pods_that_wait_are_never_ok_and_what_is_no_warning_is_no_exit_code() -> None:
    flannel = INCIDENT.with_name("pods-wait-for-flannel.json")
    volumes = INCIDENT.with_name("volumes-no-trouble.json")
    for path, code, start in (
        (flannel, FOUND, "Critical: 3 pods have waited for up to 4h: CNI plugin flannel fails"),
        (volumes, DONE, "Info: 3 pods have waited for up to 1h30m: for a volume"),
    ):
        text = scan("--exit-code", recording=path, code=code).out
        assert text.splitlines()[1].startswith(start)
    findings = json.loads(scan("-o", "json", recording=volumes).out)["findings"]
    (finding,) = (one for one in findings if one["detector"] == "waiting_pods")
    assert (finding["cause"], finding["severity"]) == ("volume_pending", "info")
    assert finding["pods"] == ["shop/elsewhere-0", "shop/full-0", "shop/slow-0"]
    assert finding["steps"][-1]["command"] == "kubectl describe pod -n shop elsewhere-0"


def test_a_recording_that_cannot_be_read_is_wrong_usage(recorded: Recorded, tmp_path: Path) -> None:
    whole = Path(recorded(node(LEAK))).read_text()
    path = tmp_path / "damaged.json"
    for content, why in {
        b"": "not JSON",
        b"[" * 100_000: "not JSON",
        b'{"schema": "nodeleak.recording/v9"}': "its schema is not 'nodeleak.recording/v1'",
        b"{}": "'nodeleak record' writes recordings",
        b'{"schema": "nodeleak.recording/v1"}': "recording.grace: missing",
        b"\xff\xfe\x00": "not UTF-8 text: 'nodeleak record' writes recordings",
        whole.replace(LEAK.ip, "banana").encode(): "banana",
    }.items():
        path.write_bytes(content)
        done = scan(recording=path, code=USAGE)
        assert done.err.startswith(f'nodeleak: cannot read recording "{path}": ')
        assert why in done.err
        assert (done.out, len(done.err) < 400) == ("", True)
    assert "no such file or directory" in scan(recording=tmp_path / "nowhere.json", code=USAGE).err
    assert "is a directory" in scan(recording=tmp_path, code=USAGE).err


def test_on_a_terminal_rows_are_one_line_and_elsewhere_whole() -> None:
    piped = rows(scan("-v").out)
    assert max(map(len, piped)) > 120
    assert not any("…" in line for line in piped)
    for columns in (80, 100):
        shown = rows(at_a_terminal("-v", columns=columns))
        assert len(shown) == len(piped)
        assert 60 < max(map(len, shown)) <= columns
    assert rows(at_a_terminal("-v", columns=500)) == rows(at_a_terminal("-v", columns=0)) == piped
    assert rows(at_a_terminal("-o", "wide", columns=80)) == rows(scan("-o", "wide").out)


def prose(text: str) -> list[str]:
    return [line for line in text.splitlines() if line not in rows(text)]


def test_prose_has_100_columns_in_a_pipe_and_a_command_is_on_one_line_everywhere() -> None:
    piped = prose(scan().out)
    assert piped == prose(at_a_terminal(columns=100)) == prose(at_a_terminal(columns=300))
    narrow = at_a_terminal(columns=50)
    assert "         nodeleak clean --apply --cleanup-network=auto\n" in narrow.replace("\r", "")
    until_then = '--since "2021-03-26 19:06 UTC" --until "2021-03-26 19:26 UTC"'
    assert f"journalctl -u kubelet -u docker {until_then}" in narrow
    assert max(len(line) for line in piped if until_then not in line) <= 100
    assert " ".join(prose(narrow)).split() == " ".join(piped).split()


def test_addresses_are_sorted_as_the_user_says(recorded: Recorded) -> None:
    now = node(
        reservation("10.244.1.9", "9" * 64, network="bridge"),
        reservation("10.244.1.9", "5" * 64, age=timedelta(hours=5)),
        reservation("10.244.1.10", "6" * 64, age=timedelta(hours=9)),
        cni_result("6" * 64, "shop/cart", CIDR),
        unrecognized("notes"),
    )
    path = recorded(now, now)
    for order, expected in (
        ("ip", "bridge/10.244.1.9 kubenet/10.244.1.9 kubenet/10.244.1.10 kubenet/notes"),
        ("age", "kubenet/10.244.1.10 kubenet/10.244.1.9 bridge/10.244.1.9 kubenet/notes"),
        ("pod", "kubenet/10.244.1.10 bridge/10.244.1.9 kubenet/10.244.1.9 kubenet/notes"),
        ("state", "bridge/10.244.1.9 kubenet/10.244.1.9 kubenet/10.244.1.10 kubenet/notes"),
        ("cause", "bridge/10.244.1.9 kubenet/10.244.1.9 kubenet/10.244.1.10 kubenet/notes"),
    ):
        done = scan(
            "-o", "name", f"--sort-by={order}", recording=path, code=UNAVAILABLE
        )  # the range of one
        assert done.out.split() == expected.split(), order


# The map


def test_an_ascii_output_has_ascii_marks_and_a_terminal_colors_unless_they_are_disabled() -> None:
    for encoding, row in (("utf-8", "G L L L ■ L L ■"), ("ascii", "G L L L o L L o")):
        done = nodeleak("scan", f"--recording={INCIDENT}", "--map", PYTHONIOENCODING=encoding)
        assert row in done.said
        assert (done.out.isascii(), "\x1b" in done.said) == (encoding == "ascii", False)
    assert "\x1b[1;37;41mL\x1b[0m" in at_a_terminal("--map")
    for plain in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        output = at_a_terminal("--map", more=plain)
        assert ("\x1b" in output, "L L L" in output) == (False, True)
