"""The manifests are valid, match the agent's settings, and grant no unused rights."""

import http.client
import tomllib
from fnmatch import fnmatch
from itertools import product
from pathlib import Path

import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
from prometheus_client import CollectorRegistry

from agent.app.sources import mounted_path
from agent.cli.parser import parse_arguments
from agent.config import Config, load, variable
from agent.exporters.web.server import HttpExporter
from agent.sources.runtime.node_runtimes import ENDPOINTS
from tests.deploy.manifests import (
    AGENTS,
    ALL,
    FILES,
    ROOT,
    container,
    environment,
    mounts,
    of_kind,
    pod_spec,
    rendered,
    rules,
    writable,
)
from tests.deploy.schemas import SCHEMAS

VERSIONS = ("1.25", "1.29", "1.33", "1.37")
"""No schemas of older versions are available; tests/e2e applies the manifests to a 1.20.2 cluster."""
VERSIONS_WITH_POLICIES = ("1.30", "1.33", "1.37")
"""Of ValidatingAdmissionPolicy v1."""

WITHOUT_DOCKER = "overlays/without-docker"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

BASE_RULES = {
    *product([""], ["pods", "nodes"], ["get", "list", "watch"]),
    *product([""], ["events"], ["create", "patch"]),
}


@pytest.mark.parametrize("name", [*ALL, *FILES])
def test_every_object_is_valid(name: str) -> None:
    objects = rendered(name)
    assert objects
    for one in objects:
        if schema := SCHEMAS.get(one["kind"]):
            jsonschema.validate(one, schema)
        else:
            versions = VERSIONS_WITH_POLICIES if one["kind"].startswith("Validating") else VERSIONS
            assert {kubernetes_validate.validate(one, version, strict=True) for version in versions}


@pytest.mark.parametrize("name", [*ALL, *FILES])
def test_every_object_has_the_recommended_labels_and_a_namespace_if_it_can(name: str) -> None:
    for one in rendered(name):
        labels = {key.removeprefix("app.kubernetes.io/"): value for key, value in one["metadata"]["labels"].items()}
        assert labels.keys() == {"name", "component", "version", "part-of", "managed-by"}
        assert (labels["version"], labels["part-of"]) == (VERSION, "nodeleak")
        in_cluster = one["kind"].startswith(("ClusterRole", "Validating"))
        assert one["metadata"].get("namespace") == (None if in_cluster else "kube-system")


def test_the_selector_of_the_daemonset_never_changes() -> None:
    """It is immutable: another one would make `kubectl apply` fail on every cluster that has the DaemonSet."""
    (daemonset,) = of_kind("base", "DaemonSet")
    assert daemonset["spec"]["selector"] == {
        "matchLabels": {"app.kubernetes.io/name": "nodeleak", "app.kubernetes.io/component": "agent"}
    }


@pytest.mark.parametrize("name", AGENTS)
def test_the_agent_accepts_every_setting(name: str) -> None:
    given = environment(name)
    assert {"NODELEAK_NODE", "NODELEAK_DOCKER_HOST"} <= given.keys()
    load("run", {}, given)


@pytest.mark.parametrize("name", AGENTS)
def test_the_agent_accepts_its_arguments(name: str) -> None:
    assert parse_arguments(container(name)["args"]).command == "run"


def test_the_node_name_comes_from_the_downward_api() -> None:
    (node,) = [one for one in container("base")["env"] if one["name"] == "NODELEAK_NODE"]
    assert node["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


@pytest.mark.parametrize("name", AGENTS)
def test_every_path_that_the_agent_reads_is_mounted(name: str) -> None:
    config = load("run", {}, {variable("node"): "worker-1"})
    assert isinstance(config, Config)
    assert config.device_plugins_dir is not None
    checkpoints = () if name == WITHOUT_DOCKER else config.checkpoint_dir
    read = [config.cni_networks_dir, *config.cni_cache_dir, *checkpoints, config.device_plugins_dir]
    for path in (*read, config.state_dir):
        assert any(path.is_relative_to(one["mountPath"]) and one["mountPath"] == at for at, one in mounts(name).items())
    socket = environment(name)[variable("docker_host")].removeprefix("unix://")
    assert socket.startswith(mounts(name)["/var/run"]["mountPath"])


@pytest.mark.parametrize("socket", [Path(one) for one in ENDPOINTS])
def test_every_usual_socket_of_a_runtime_is_mounted_where_the_agent_looks_for_it(socket: Path) -> None:
    in_run = socket.is_relative_to("/run")
    mount = mounts("base")["/var/run"] if in_run else mounts("overlays/microk8s")[str(socket.parent)]
    assert mount["mountPath"] == (environment("base")[variable("run_dir")] if in_run else str(socket.parent))
    assert mount["readOnly"]


def test_the_base_can_write_only_its_own_state() -> None:
    assert writable("base") == {"/var/lib/nodeleak"}


@pytest.mark.parametrize("name", ["overlays/cleanup", "overlays/cleanup-exec"])
def test_the_cleanup_overlays_can_also_write_reservations_and_the_cni_cache(name: str) -> None:
    assert writable(name) == {"/var/lib/nodeleak", "/var/lib/cni"}


def test_the_data_directory_of_kind_is_writable_where_the_agent_looks_for_it() -> None:
    name = "overlays/data-dir"
    assert writable(name) == {"/var/lib/nodeleak", "/var/lib/cni", "/run/cni-ipam-state"}
    seen = mounted_path(Path("/run/cni-ipam-state"), Path(environment(name)[variable("run_dir")]))
    assert mounts(name)["/run/cni-ipam-state"]["mountPath"] == str(seen)


def test_without_docker_its_directories_are_not_created_on_the_node() -> None:
    of_docker = {"/var/lib/dockershim", "/var/lib/cri-dockerd"}
    assert mounts(WITHOUT_DOCKER) == {path: one for path, one in mounts("base").items() if path not in of_docker}
    assert [one["name"] for one in pod_spec(WITHOUT_DOCKER)["volumes"]] == [
        one["name"] for one in pod_spec("base")["volumes"] if one["hostPath"]["path"] not in of_docker
    ]


def test_only_one_overlay_cleans_automatically() -> None:
    cleaning = {name: environment(name).get("NODELEAK_CLEANUP") for name in AGENTS}
    assert {name: mode for name, mode in cleaning.items() if mode} == {"overlays/cleanup": "auto"}


@pytest.mark.parametrize("name", AGENTS)
def test_only_directories_are_mounted_because_sockets_are_recreated(name: str) -> None:
    for path, mount in mounts(name).items():
        assert mount["type"] in {"Directory", "DirectoryOrCreate"}
        assert not fnmatch(path, "*.sock")


@pytest.mark.parametrize("name", AGENTS)
def test_what_the_node_unmounts_is_unmounted_in_the_pod(name: str) -> None:
    """The node mounts network namespaces, volumes and secrets below these."""
    following = {path for path, mount in mounts(name).items() if mount.get("mountPropagation") == "HostToContainer"}
    more = {"/var/snap/microk8s/common/run"} if name == "overlays/microk8s" else set()
    assert following == {"/var/run", "/var/lib/kubelet/plugins", "/var/lib/kubelet/pods"} | more


@pytest.mark.parametrize("name", AGENTS)
def test_the_kubelets_own_files_are_not_mounted(name: str) -> None:
    below = {path.removeprefix("/var/lib/kubelet/") for path in mounts(name) if path.startswith("/var/lib/kubelet")}
    assert below == {"device-plugins", "plugins", "pods"}


@pytest.mark.parametrize("name", AGENTS)
def test_the_agent_is_root_without_capabilities(name: str) -> None:
    assert container(name)["securityContext"] == {
        "runAsUser": 0,
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.parametrize("name", AGENTS)
def test_the_agent_starts_on_every_node_even_a_broken_one(name: str) -> None:
    spec = pod_spec(name)
    assert (spec["hostNetwork"], spec["hostPID"], spec["dnsPolicy"]) == (True, True, "Default")
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["priorityClassName"] == "system-node-critical"
    assert spec["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert "cpu" not in container(name)["resources"]["limits"]


@pytest.mark.parametrize("name", AGENTS)
def test_probes_and_scrapers_use_paths_that_are_served(name: str) -> None:
    host, port = load("run", {}, {variable("node"): "worker-1"}).listen
    (metrics,) = container(name)["ports"]
    assert (host, metrics["name"], metrics["containerPort"]) == ("", "metrics", port)
    (daemonset,) = of_kind(name, "DaemonSet")
    annotations = daemonset["spec"]["template"]["metadata"].get("annotations", {})
    assert annotations.get("prometheus.io/port", str(port)) == str(port)
    asked = [container(name)[probe]["httpGet"]["path"] for probe in ("livenessProbe", "readinessProbe")]
    exporter = HttpExporter(("127.0.0.1", 0), CollectorRegistry(), lambda: True)
    exporter.start()
    try:
        statuses = set[int]()
        for path in (*asked, "/metrics"):
            connection = http.client.HTTPConnection("127.0.0.1", exporter.port, timeout=5)
            connection.request("GET", path)
            statuses.add(connection.getresponse().status)
            connection.close()
    finally:
        exporter.close()
    assert statuses == {200, 503}, "nothing is ready yet, and nothing is missing"


@pytest.mark.parametrize("name", ["base", *FILES])
def test_the_image_has_this_version_and_cannot_be_pulled(name: str) -> None:
    assert container(name)["image"] == f"registry.invalid/nodeleak:{VERSION}"
    assert container(name)["imagePullPolicy"] == "IfNotPresent"


@pytest.mark.parametrize("name", [one for one in AGENTS if one != "overlays/node-condition"])
def test_the_account_has_only_the_base_rights(name: str) -> None:
    assert rules(name) == BASE_RULES


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        ("node-condition", "ClusterRole", BASE_RULES | {("", "nodes/status", "patch")}),
        ("cluster-autoscaler", "Role", {("", "configmaps", "get")}),
        (
            "volume-attachments",
            "ClusterRole",
            {
                ("storage.k8s.io", "volumeattachments", "get"),
                *product([""], ["persistentvolumes", "persistentvolumeclaims"], ["get"]),
                *product([""], ["events"], ["get", "list"]),
            },
        ),
    ],
)
def test_an_overlay_adds_only_these_rights(name: str, kind: str, more: set[tuple[str, str, str]]) -> None:
    assert rules(f"overlays/{name}", kind) == more


def test_only_the_autoscalers_config_map_can_be_read() -> None:
    (role,) = of_kind("overlays/cluster-autoscaler", "Role")
    assert [rule.get("resourceNames") for rule in role["rules"]] == [["cluster-autoscaler-status"]]


@pytest.mark.parametrize("name", ALL)
def test_roles_are_bound_only_to_the_agents_account(name: str) -> None:
    roles = {(kind, one["metadata"]["name"]) for kind in ("Role", "ClusterRole") for one in of_kind(name, kind)}
    bindings = [one for kind in ("RoleBinding", "ClusterRoleBinding") for one in of_kind(name, kind)]
    assert {(one["roleRef"]["kind"], one["roleRef"]["name"]) for one in bindings} == roles
    account = {"kind": "ServiceAccount", "name": "nodeleak", "namespace": "kube-system"}
    assert all(one["subjects"] == [account] for one in bindings)


def agent_labels() -> dict[str, str]:
    (daemonset,) = of_kind("base", "DaemonSet")
    labels: dict[str, str] = daemonset["spec"]["template"]["metadata"]["labels"]
    return labels


def test_the_pod_monitor_selects_the_agents_pods() -> None:
    (monitor,) = of_kind("overlays/prometheus-operator", "PodMonitor")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= agent_labels().items()
    assert [one["port"] for one in monitor["spec"]["podMetricsEndpoints"]] == ["metrics"]


def test_the_service_monitor_selects_a_service_that_selects_the_agents_pods() -> None:
    (monitor,) = of_kind("overlays/prometheus-service-monitor", "ServiceMonitor")
    (service,) = of_kind("overlays/prometheus-service-monitor", "Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= agent_labels().items()
    assert [one["port"] for one in monitor["spec"]["endpoints"]] == [one["name"] for one in service["spec"]["ports"]]
    assert [one["targetPort"] for one in service["spec"]["ports"]] == [container("base")["ports"][0]["name"]]


def test_both_monitors_give_their_targets_the_same_labels() -> None:
    """Alerts and dashboard use `node` and `instance`."""
    (of_pods,) = of_kind("overlays/prometheus-operator", "PodMonitor")
    (of_services,) = of_kind("overlays/prometheus-service-monitor", "ServiceMonitor")
    assert of_pods["spec"]["podMetricsEndpoints"] == of_services["spec"]["endpoints"]
