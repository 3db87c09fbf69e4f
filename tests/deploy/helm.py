"""Helm, built from its pinned Go module (helm-module), and the chart of deploy/helm."""

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
_MODULE: Final = Path(__file__).parent / "helm-module"


@cache
def program() -> str:
    """Return the path of Helm. Go builds it, in two minutes, and keeps it in its own cache."""
    needs(shutil.which("go") is not None, "Go, to build Helm")
    settings = os.environ | {"GOFLAGS": "-mod=readonly", "GOWORK": "off", "CGO_ENABLED": "0"}
    with Path(tempfile.gettempdir(), f"nodeleak-helm-{os.getuid()}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several builds at once would compile the same
        command = ["go", "-C", str(_MODULE), "tool", "-n", "helm"]
        built = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)  # noqa: S603 (Go)
    needs(built.returncode == 0, f"a Go that can build Helm, and its module proxy: {built.stderr[-500:]}")
    return built.stdout.strip()


def helm(*arguments: str, text: str = "", codes: tuple[int, ...] = (0,)) -> "subprocess.CompletedProcess[str]":
    command = [program(), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    assert done.returncode in codes, done.stderr
    return done


def template(values: dict[str, Any], namespace: str = "kube-system") -> list[dict[str, Any]]:
    """Return the objects of a release with these values."""
    command = ("template", "any-name", str(CHART), f"--namespace={namespace}", "--values=-")
    return [document for document in yaml.safe_load_all(helm(*command, text=yaml.safe_dump(values)).stdout) if document]
