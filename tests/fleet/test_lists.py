"""How long a list of kubectl may take: a script, or a person who can log in on a terminal, waits for it."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.fleet.kubectl import FakeKubectl
from tests.wire import until

HUNG = ("exec sleep 30", "sleep 30; exit", "exec >&-; exec sleep 30")
"""kubectl, a credential plugin of it that has its pipes, and a kubectl that has printed everything."""
ON_TERMINAL = (
    *(sys.executable, "-c"),
    "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))",
)
ASKS_ONCE = """\
if [ "$1" = get ] && [ ! -e "$0-asks" ]; then
    touch "$0-asks"
    read -r answer < /dev/tty
    [ "$answer" = secret ] || exit 1
fi
exec "$0-before" "$@"
"""


def test_a_list_that_does_not_come_is_an_error_also_if_it_waits_for_a_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: list[tuple[str, tuple[str, ...]]] = [(script, ("status",)) for script in HUNG]
    cases += [(HUNG[0], ("scan", "worker-1")), (HUNG[0], ("clean", "--all", "--apply", "--yes"))]
    children = []
    for number, (script, arguments) in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        kubectl = FakeKubectl(tmp_path / str(number))
        kubectl.replace(script)
        children.append(kubectl.start(*arguments, "--timeout=1s"))
    why = "nodeleak: cannot list nodes: kubectl did not end within {} s\n"
    for child in children:
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out, err) == (3, "", why.format(3))
    monkeypatch.setattr(os, "isatty", lambda _: True)
    monkeypatch.setattr("agent.fleet.kubectl.LOGIN_SECONDS", 4)
    for number in range(len(HUNG)):
        monkeypatch.setenv("PATH", f"{tmp_path / str(number)}{os.pathsep}{os.environ['PATH']}")
        done = kubectl.run("status", "--timeout=1s")
        assert (done.code, done.err) == (3, why.format(4))


def test_a_plugin_that_hangs_ends_with_its_list(kubectl: FakeKubectl) -> None:
    fifo = kubectl.home / "held"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def ended() -> bool:
        try:
            return os.read(held, 1) == b""
        except BlockingIOError:
            return False

    try:
        kubectl.replace(f"sleep 30 > {fifo}; exit")
        assert "kubectl did not end" in kubectl.run("status", "--timeout=1s").err
        # Its last writer is gone: a pipe that somebody holds would have nothing to read yet.
        until(ended, "the plugin has ended")
    finally:
        os.close(held)


def test_somebody_who_logs_in_on_the_terminal_has_time(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", pods=[])
    kubectl.replace(ASKS_ONCE)
    child = kubectl.start("status", "--timeout=1s", before=ON_TERMINAL, stdin=subprocess.PIPE)
    until((kubectl.home / "kubectl-asks").exists, "kubectl asks", 60)
    threading.Event().wait(5)  # longer than a list may take without a terminal
    out, _ = child.communicate("secret\n", timeout=60)
    assert (child.returncode, "worker-1  missing" in out) == (3, True), out


def test_a_context_that_does_not_come_is_an_error_and_not_none(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", own_code=1)
    kubectl.replace(f'[ "$1" = config ] && exec {kubectl.home}/config; exec "$0-before" "$@"')
    config, command = (
        kubectl.home / "config",
        ("clean", "--all", "--apply", "--yes", "--timeout=1s"),
    )
    config.write_text("#!/bin/sh\nexec sleep 30\n")
    config.chmod(0o755)
    done = kubectl.run(*command)
    assert (done.code, done.err) == (
        3,
        "nodeleak: cannot read the current context: kubectl did not end within 3 s\n",
    )
    assert kubectl.asked() == []
    config.write_text("#!/bin/sh\nexit 1\n")  # there is none
    assert kubectl.run(*command).err.startswith(
        "nodeleak: release leaked addresses on 1 node (worker-1), in 1 wave\n"
    )
