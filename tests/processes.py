"""Commands started beside us: their output in a file, and never left behind."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_OURS = ("NODELEAK_", "DOCKER_", "KUBE")
_PROXIES = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}


def environment(**more: str) -> dict[str, str]:
    """Return our environment without what would lead the command to another node, or through a proxy."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(_OURS) and name.lower() not in _PROXIES
    }
    return kept | more


@contextmanager
def running(command: Sequence[str], log: Path, env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command while the block runs. It has a session of its own, so that a Ctrl-C is ours to pass on."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
        )
    try:
        yield child
    finally:
        stop(child)


def stop(child: subprocess.Popen[bytes], patience: float = 5.0) -> int:
    """End a command, and return its exit code. `patience`: seconds before it is killed."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


def until(deadline: float, every: float = 0.05) -> Iterator[None]:
    """Yield now and then until `deadline`, seconds of the monotonic clock. `every`: seconds."""
    while time.monotonic() < deadline:
        yield
        time.sleep(every)
