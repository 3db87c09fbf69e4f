"""How long a list of kubectl may take: a script, or a person who can log in on a terminal, waits for it."""

import os
import subprocess
import sys
import threading
from collections.abc import Sequence

import pytest

from agent.fleet.kubectl import Kubectl, KubectlError
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


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        *((script, ("status",)) for script in HUNG),
        (HUNG[0], ("scan", "worker-1")),
        (HUNG[0], ("clean", "--all", "--apply", "--yes")),
    ],
)
def test_a_list_that_does_not_come_is_an_error(script: str, arguments: Sequence[str], kubectl: FakeKubectl) -> None:
    kubectl.replace(script)
    child = kubectl.start(*arguments, "--timeout=1s")
    try:
        out, err = child.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        child.kill()
        pytest.fail("it still waits for kubectl")
    why = "cannot list nodes: kubectl did not end within 3 s"
    assert (child.returncode, out, err) == (3, "", f"nodeleak: {why}\n")


def test_a_plugin_that_hangs_ends_with_its_list(kubectl: FakeKubectl) -> None:
    fifo = kubectl.home / "held"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        kubectl.replace(f"sleep 30 > {fifo}; exit")
        with pytest.raises(KubectlError, match="kubectl did not end"):
            Kubectl(timeout=1).get("nodes")
        # Its last writer is gone: a pipe that somebody holds would have nothing to read yet.
        until(lambda: _ended(held), "the plugin has ended")
    finally:
        os.close(held)


@pytest.mark.parametrize("script", HUNG)
def test_a_login_has_an_end_too(script: str, kubectl: FakeKubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: True)
    monkeypatch.setattr("agent.fleet.kubectl.LOGIN_SECONDS", 1)
    kubectl.replace(script)
    with pytest.raises(KubectlError, match=r"^cannot list nodes: kubectl did not end within 1 s$"):
        Kubectl(timeout=0.1).get("nodes")


def test_somebody_who_logs_in_on_the_terminal_has_time(kubectl: FakeKubectl) -> None:
    kubectl.node("worker-1", pods=[])
    kubectl.replace(ASKS_ONCE)
    child = kubectl.start("status", "--timeout=1s", before=ON_TERMINAL, stdin=subprocess.PIPE)
    until((kubectl.home / "kubectl-asks").exists, "kubectl asks", 60)
    threading.Event().wait(5)  # longer than a list may take without a terminal
    out, _ = child.communicate("secret\n", timeout=60)
    assert (child.returncode, "worker-1  missing" in out) == (3, True), out


def test_a_context_that_does_not_come_is_an_error_and_not_none(kubectl: FakeKubectl) -> None:
    kubectl.replace("exec sleep 30")
    with pytest.raises(KubectlError, match=r"^cannot read the current context: kubectl did not end within 0\.3 s$"):
        Kubectl(timeout=0.1).context()


def test_without_a_current_context_its_name_is_empty(kubectl: FakeKubectl) -> None:
    kubectl.replace("echo 'error: current-context is not set' >&2; exit 1")
    assert Kubectl(timeout=20).context() == ""


def _ended(pipe: int) -> bool:
    try:
        return os.read(pipe, 1) == b""
    except BlockingIOError:
        return False
