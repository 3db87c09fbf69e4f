"""Helm, and the chart of deploy/helm; krew. Both are built from their pinned Go modules (helm-module, krew-module)."""

import subprocess
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from tests import go_tool
from tests.wire import needs

CHART: Final = Path(__file__).parents[2] / "deploy/helm/nodeleak"
RELEASE: Final = "any-name"


def program(name: str = "helm") -> str:
    """Return the path of helm, krew or actionlint."""
    try:
        return go_tool.build(Path(__file__).with_name(f"{name}-module"))
    except OSError as error:
        needs(met=False, what=str(error))
        raise


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
