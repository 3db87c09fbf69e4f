"""The examples for Argo CD and Flux: they name what exists here, and leave the brake alone."""

from typing import Any

import yaml  # type: ignore[import-untyped]

from agent.config import load
from tests.deploy.helm import template
from tests.deploy.manifests import DEPLOY, ROOT, rendered

GITOPS = DEPLOY / "gitops"


def objects(name: str) -> dict[str, dict[str, Any]]:
    """Return the objects of an example, by kind."""
    found = list(yaml.safe_load_all((GITOPS / name).read_text()))
    return {document["kind"]: document for document in found}


def test_the_helm_release_takes_the_chart_of_this_repository_with_values_that_it_knows() -> None:
    found = objects("flux-helmrelease.yaml")
    assert found.keys() == {"GitRepository", "HelmRelease"}
    release = found["HelmRelease"]["spec"]
    chart = release["chart"]["spec"]
    source = found["GitRepository"]["metadata"]
    assert chart["sourceRef"] == {"kind": "GitRepository", "name": source["name"]}
    assert source["namespace"] == found["HelmRelease"]["metadata"]["namespace"]
    directory = ROOT / chart["chart"]
    assert (directory / "Chart.yaml").is_file()
    (daemonset,) = (
        each
        for each in template(release["values"], release["targetNamespace"], directory)
        if each["kind"] == "DaemonSet"
    )
    (agent,) = daemonset["spec"]["template"]["spec"]["containers"]
    image = release["values"]["image"]
    assert agent["image"] == f"{image['repository']}:{image['tag']}"
    load("run", {"node": "worker-1"}, release["values"]["env"])
    kept = found["GitRepository"]["spec"]["ignore"].split()
    assert "!/deploy" in kept, "the chart is below it"


def test_the_application_installs_where_the_manifests_are() -> None:
    (application,) = objects("argocd-application.yaml").values()
    assert (application["apiVersion"], application["kind"]) == (
        "argoproj.io/v1alpha1",
        "Application",
    )
    spec = application["spec"]
    (daemonset,) = (each for each in rendered("base") if each["kind"] == "DaemonSet")
    assert spec["destination"]["namespace"] == daemonset["metadata"]["namespace"]
    assert spec.keys() == {"project", "source", "destination", "syncPolicy"}
    assert {"repoURL", "targetRevision", "path"} == spec["source"].keys()


def test_nothing_that_is_applied_has_the_brake_in_it() -> None:
    """Or a sync of a repository would set it, or end it."""
    for name in ("base", "overlays/cleanup", "overlays/cleanup-labeled", "install.yaml"):
        assert not [each for each in rendered(name) if each["kind"] == "ConfigMap"], name
