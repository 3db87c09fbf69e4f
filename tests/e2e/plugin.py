"""`kubectl nodeleak` on an operator's machine: the program on PATH, with the real kubectl."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

from tests.processes import environment

from .deployment import ROOT
from .node import Cluster, run


class Plugin:
    """The console script on PATH, as on an operator's machine."""

    def __init__(self, cluster: Cluster, directory: Path, kubectl: Path | None = None) -> None:
        """`kubectl`: another one than that of PATH."""
        self._cluster, self._directory = cluster, directory
        if kubectl is not None:
            (directory / "kubectl").symlink_to(kubectl)
        program = directory / "kubectl-nodeleak"
        program.write_text(f"#!{sys.executable}\nimport sys\nfrom agent.fleet.command import main\nsys.exit(main())\n")
        program.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        """Return the environment of an operator's shell."""
        path = f"{self._directory}{os.pathsep}{os.environ['PATH']}"
        return environment(PATH=path, KUBECONFIG=str(self._cluster.admin), PYTHONPATH=str(ROOT), **more)

    def __call__(self, *arguments: str, codes: Sequence[int] = (0,)) -> "CompletedProcess[str]":
        return run("kubectl", "nodeleak", *arguments, codes=codes, env=self.environment(), cwd=self._directory)

    def run_json(self, command: str, *arguments: str) -> dict[str, Any]:
        """Return the only node of the merged document."""
        tree = json.loads(self(command, "-o", "json", *arguments).stdout)
        assert tree["schema"] == "nodeleak.fleet/v1"
        (node,) = tree["nodes"]
        found: dict[str, Any] = node
        return found
