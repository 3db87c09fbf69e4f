"""The environment of measurements: an installation like the image's, and fakes in a separate process."""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests import processes
from tests.fakes.host import Host

ROOT = Path(__file__).resolve().parents[2]
_BENCH = ROOT / "build/bench"
_INSTALLED = ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "agent")


@cache
def runtime() -> Path:
    """Return the `bin` of an environment with the agent and its dependencies, without development tools.

    structlog, for example, imports rich if it is installed, which takes 4 MiB. Rebuilt when the agent changes.
    """
    files = [
        path for name in _INSTALLED for path in (ROOT / name, *sorted((ROOT / name).rglob("*.py")))
    ]
    digest = hashlib.sha256(
        b"".join(path.read_bytes() for path in files if path.is_file())
    ).hexdigest()
    stamp = _BENCH / "digest"
    if not stamp.exists() or stamp.read_text() != digest:
        print(
            "creating an environment without development tools (half a minute) …",
            file=sys.stderr,
            flush=True,
        )
        shutil.rmtree(_BENCH, ignore_errors=True)
        venv.create(_BENCH / "venv", with_pip=True)
        with tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as copy:
            # A copy: building in place leaves files in build/ that a later build would use.
            for name in _INSTALLED:
                source = ROOT / name
                if source.is_dir():
                    shutil.copytree(
                        source, Path(copy) / name, ignore=shutil.ignore_patterns("__pycache__")
                    )
                else:
                    shutil.copy(source, copy)
            pip = (_BENCH / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check")
            command = [*map(str, pip), "--constraint", str(ROOT / "constraints.txt"), copy]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise OSError(f"pip could not install the agent:\n{done.stderr}")
        stamp.write_text(digest)
    return _BENCH / "venv/bin"


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a process as in the image, as far as its memory depends on it."""
    image = re.findall(r"\b(MALLOC_\w+)=(\d+)", (ROOT / "Dockerfile").read_text())
    if not image:
        raise OSError("the Dockerfile sets nothing of malloc")
    return processes.environment(**(dict(image) | more))


@contextmanager
def fake_node(
    pods: int,
    cidr: str,
    pod_bytes: tuple[int, int] = (0, 0),
    runtime: str = "docker://19.3.15",
    **more: int,
) -> Iterator[tuple[Host, str]]:
    """Run the fakes of a healthy node in another process during the block; yield the host and the API server's URL.

    `more`: fields of `FakeNode`.
    """
    arguments = [
        pods,
        cidr,
        *pod_bytes,
        runtime,
        *(f"{name}={number}" for name, number in more.items()),
    ]
    with tempfile.TemporaryDirectory(prefix="nodeleak-bench-") as directory:
        host = Host(Path(directory) / "node")
        with subprocess.Popen(
            [sys.executable, "-m", "tests.fakes", str(host.root), *map(str, arguments)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=processes.environment(),
            start_new_session=True,  # Ctrl-C must only reach the parent
        ) as child:
            try:
                if child.stdout is None or not (url := child.stdout.readline().decode().strip()):
                    raise OSError("the fakes did not start")
                yield host, url
            finally:
                processes.stop(child)
