"""The chart in the newest Kubernetes: a release is installed, upgraded, rolled back and uninstalled."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.helm import CHART, program
from tests.e2e.deployment import IMAGE, MODERN_TAG
from tests.e2e.node import eventually, run
from tests.e2e.nodeleak import BOLD, Report
from tests.e2e.plugin import HASTY

from .node import ModernNode

pytestmark = pytest.mark.e2e
_NAMESPACE = "--namespace=kube-system"
_KINDS = "daemonsets,serviceaccounts,clusterroles,clusterrolebindings,validatingadmissionpolicies"


class Release:
    """The release `agent` of the chart on one node."""

    def __init__(self, node: ModernNode, directory: Path) -> None:
        self._node = node
        self._values = directory / "values.yaml"
        values: dict[str, Any] = {
            "image": {"repository": IMAGE, "tag": MODERN_TAG, "pullPolicy": "Never"},
            "nodeSelector": {"kubernetes.io/hostname": node.cluster.node},
            "docker": node.profile == "cri-dockerd",
            "env": HASTY,
        }
        self._values.write_text(json.dumps(values))

    def apply(self, command: str, *settings: str) -> str:
        """Install or upgrade it, and wait until its pod is ready."""
        options = [f"--values={self._values}", *(f"--set={setting}" for setting in settings)]
        return self.helm(command, "agent", str(CHART), *options, "--wait", "--timeout=150s")

    def helm(self, *arguments: str) -> str:
        return run(
            program(), f"--kubeconfig={self._node.cluster.admin}", _NAMESPACE, *arguments
        ).stdout

    def nodeleak(self, *arguments: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """Run a command of the agent, whose daemon has done its first sync, and return its JSON output."""
        command = ("exec", "daemonset/nodeleak", "--", "nodeleak", *arguments, "-o", "json")
        kubectl = (self._node.cluster.program, "--kubeconfig", self._node.cluster.admin, _NAMESPACE)
        document: dict[str, Any] = json.loads(run(*kubectl, *command, codes=codes).stdout)
        return document

    def objects(self) -> list[str]:
        label = "app.kubernetes.io/part-of=nodeleak,app.kubernetes.io/managed-by=Helm"
        return self._node.kubectl("get", _KINDS, _NAMESPACE, "-l", label, "-o", "name").splitlines()


@pytest.fixture
def release(node: ModernNode, node_with_image: ModernNode, tmp_path: Path) -> Iterator[Release]:
    assert node is node_with_image
    found = Release(node, tmp_path)
    found.helm("uninstall", "agent", "--ignore-not-found", "--wait")  # of a run that was killed
    try:
        yield found
    finally:
        found.helm("uninstall", "agent", "--ignore-not-found", "--wait")
        node.kubectl(
            "wait", "pods", _NAMESPACE, "-l", "app.kubernetes.io/name=nodeleak", "--for=delete"
        )
        node.run("sh", "-c", "rm -rf /var/lib/nodeleak/*")


def test_a_release_is_installed_upgraded_rolled_back_and_uninstalled(
    node: ModernNode, release: Release
) -> None:
    assert "Cleanup: off." in release.apply("install")
    healthy, leaked = node.pods(2), node.reserve(3)
    assert Report(0, release.nodeleak("scan")).states == dict.fromkeys(
        healthy, "in_use"
    ) | dict.fromkeys(leaked, "leaked")

    release.helm("test", "agent", "--timeout=150s")

    release.apply("upgrade", "cleanup=auto", "nodeCondition=true", "admissionPolicy=true")
    eventually(lambda: node.reserved().keys(), equal=healthy.keys())
    assert {name.partition("/")[2] for name in release.objects()} >= {
        "nodeleak-node-condition",
        "nodeleak-own-node",
    }

    release.helm("rollback", "agent", "1", "--wait", "--timeout=150s")
    assert {name.partition("/")[2] for name in release.objects()} == {"nodeleak"}
    leaked = node.reserve(2)
    dry = release.nodeleak("clean", "--dry-run", *BOLD, codes=(6,))
    assert {blocker["by"] for blocker in dry["blockers"]} == {
        "no_cleanup_network",
        "network_unwritable",
    }
    assert node.reserved().keys() == {*healthy, *leaked}

    release.helm("uninstall", "agent", "--wait")
    assert release.objects() == []
