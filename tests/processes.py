"""Run child processes with their output in a file, and always stop them."""

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_PREFIXES = ("NODELEAK_", "DOCKER_", "KUBE")
_PROXIES = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}


def environment(**more: str) -> dict[str, str]:
    """Return the environment without variables that point to another node or to a proxy."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_PREFIXES) and name.lower() not in _PROXIES
    }
    return kept | more


@contextmanager
def running(
    command: Sequence[str], log: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command during the block, in its own session, so that Ctrl-C reaches only the parent."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            start_new_session=True,
        )
    try:
        yield child
    finally:
        stop(child)


def stop(child: subprocess.Popen[bytes], timeout: float = 5.0) -> int:
    """Terminate a command, kill it after `timeout` seconds, and return its exit code."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(timeout)
        except subprocess.TimeoutExpired:
            child.kill()
    return child.wait()


def until(deadline: float, every: float = 0.05) -> Iterator[None]:
    """Yield every `every` seconds until `deadline` of the monotonic clock."""
    while time.monotonic() < deadline:
        yield
        time.sleep(every)
