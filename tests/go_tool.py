"""Programs that tests need, built from Go modules: each is pinned in a directory `NAME-module`."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path


@cache
def build(module: Path) -> str:
    """Return the path of the program. Go builds it, in minutes, and keeps it in its own cache. Raises OSError."""
    name = module.name.removesuffix("-module")
    if shutil.which("go") is None:
        raise OSError(f"Go, to build {name}")
    settings = os.environ | {"GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0"}
    with Path(tempfile.gettempdir(), f"nodeleak-{name}-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several builds at once would compile the same
        command = ["go", "-C", str(module), "tool", "-n", name]
        built = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)  # noqa: S603 (Go)
    if built.returncode != 0:
        raise OSError(f"a Go that can build {name}, and its module proxy: {built.stderr[-500:]}")
    return built.stdout.strip()
