"""Helm, and the chart of deploy/helm; krew. Both are built from their pinned Go modules (helm-module, krew-module)."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from tests.wire import needs

CHART: Final = Path(__file__).parents[2] / "deploy/helm/nodeleak"
RELEASE: Final = "any-name"


@cache
def program(name: str = "helm") -> str:
    """Return the path of helm or krew. Go builds it, Helm in two minutes, and keeps it in its own cache."""
    needs(shutil.which("go") is not None, f"Go, to build {name}")
    settings = os.environ | {"GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0"}
    with Path(tempfile.gettempdir(), f"nodeleak-{name}-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several builds at once would compile the same
        command = ["go", "-C", str(Path(__file__).with_name(f"{name}-module")), "tool", "-n", name]
        built = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)  # noqa: S603 (Go)
    needs(
        built.returncode == 0,
        f"a Go that can build {name}, and its module proxy: {built.stderr[-500:]}",
    )
    return built.stdout.strip()


def helm(
    *arguments: str, text: str = "", codes: tuple[int, ...] = (0,)
) -> "subprocess.CompletedProcess[str]":
    command = [program(), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    assert done.returncode in codes, done.stderr
    return done


def template(
    values: dict[str, Any], namespace: str = "kube-system", chart: Path = CHART
) -> list[dict[str, Any]]:
    """Return the objects of a release with these values, without the pod of `helm test`."""
    options = (f"--namespace={namespace}", "--values=-", "--no-hooks")
    command = ("template", RELEASE, str(chart), *options)
    return [
        document
        for document in yaml.safe_load_all(helm(*command, text=yaml.safe_dump(values)).stdout)
        if document
    ]
