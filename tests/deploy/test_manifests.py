"""The manifests are valid, match the agent's settings, and grant no unused rights."""

import itertools
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import yaml  # type: ignore[import-untyped]

from agent.cli.parser import parse_arguments
from agent.config import load
from tests.deploy.manifests import (
    AGENTS,
    ALL,
    BASE_RULES,
    BRAKE_RULES,
    DEPLOY,
    FILES,
    JOB,
    ONE_NODE,
    ROOT,
    container,
    environment,
    kubectl_has_components,
    kustomization,
    mounts,
    of_kind,
    pod_spec,
    render,
    rendered,
    rules,
    writable,
)
from tests.wire import needs, only_with, run

VERSIONS = ("1.25", "1.29", "1.33", "1.37")
"""No schemas of older versions are available; tests/e2e applies the manifests to a 1.20.2 cluster."""
DOCKER, CLEANUP_EXEC = "overlays/docker", "overlays/cleanup-exec"
NO_API, OPENSHIFT = "overlays/no-api", "overlays/openshift"
DROPPED = {
    "overlays/no-device-plugins": {
        "/var/lib/kubelet/device-plugins": "device_plugins_dir",
        "/var/lib/kubelet/plugins_registry": "device_plugins_dir",
    },
    "overlays/no-kubelet-volumes": {
        "/var/lib/kubelet/plugins": "kubelet_dir",
        "/var/lib/kubelet/pods": "kubelet_dir",
    },
}
"""What overlays do not mount, and which setting says so to the agent."""
LABELED = "overlays/cleanup-labeled"


def test_every_object_is_valid() -> None:
    for name in (*ALL, *FILES):
        assert rendered(name), name
        for document in rendered(name):
            if document["apiVersion"] == "monitoring.coreos.com/v1":
                assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
            if document["apiVersion"] in {"monitoring.coreos.com/v1", "security.openshift.io/v1"}:
                continue  # of which no schemas are available: what their fields are is compared below
            for version in VERSIONS[2:] if document["kind"].startswith("Validating") else VERSIONS:
                kubernetes_validate.validate(document, version, strict=True)


def test_the_files_are_up_to_date() -> None:
    needs(shutil.which("kubectl") is not None, "kubectl, to render deploy/")
    command = [sys.executable, str(ROOT / "hack/manifests"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    assert (done.returncode, done.stderr) == (0, ""), "run hack/manifests again"


def test_the_selector_of_the_daemonset_never_changes_and_the_monitors_select_its_pods_but_not_the_jobs() -> (
    None
):
    """It is immutable: another one would make `kubectl apply` fail on every cluster that has the DaemonSet."""
    (daemonset,) = of_kind("base", "DaemonSet")
    selector = {"app.kubernetes.io/name": "nodeleak", "app.kubernetes.io/component": "agent"}
    assert daemonset["spec"]["selector"] == {"matchLabels": selector}
    (job,) = rendered(JOB)
    assert not selector.items() & job["spec"]["template"]["metadata"]["labels"].items()
    labels = daemonset["spec"]["template"]["metadata"]["labels"].items()
    (pods,) = of_kind("overlays/prometheus-operator", "PodMonitor")
    (services,) = of_kind("overlays/prometheus-service-monitor", "ServiceMonitor")
    (service,) = of_kind("overlays/prometheus-service-monitor", "Service")
    of_node = {"sourceLabels": ["__meta_kubernetes_pod_node_name"]}
    relabelings = [of_node | {"targetLabel": label} for label in ("node", "instance")]
    endpoints = [{"port": "metrics", "interval": "30s", "relabelings": relabelings}]
    common = {"selector": {"matchLabels": selector}, "sampleLimit": 2000}
    assert pods["spec"] == common | {"podMetricsEndpoints": endpoints}
    assert services["spec"] == common | {"endpoints": endpoints}
    assert (
        selector.items() <= labels,
        selector.items() <= service["metadata"]["labels"].items(),
    ) == (True, True)
    assert service["spec"]["selector"].items() <= labels
    ports = [(port["name"], port["targetPort"]) for port in service["spec"]["ports"]]
    assert ports == [("metrics", container("base")["ports"][0]["name"])]


def rule_names(role: dict[str, Any]) -> list[str]:
    """Return the names of the objects that a role allows."""
    return [name for rule in role["rules"] for name in rule["resourceNames"]]


def test_the_agent_accepts_its_settings_and_arguments() -> None:
    for name in AGENTS:
        given = environment(name)
        assert {"NODELEAK_NODE", "NODELEAK_DOCKER_HOST"} <= given.keys()
        (role,) = of_kind(name, "Role")
        assert rule_names(role) == ([] if name == NO_API else [given["NODELEAK_BRAKE"]]), name
        load("run", {}, given)
        assert parse_arguments(container(name)["args"]).command == "run"


def test_every_path_that_the_agent_reads_is_mounted() -> None:
    own = {
        DOCKER: {"/var/lib/dockershim", "/var/lib/cri-dockerd"},
        "overlays/microk8s": {"/var/snap/microk8s/common/run"},
        "overlays/data-dir": {"/run/cni-ipam-state"},
    }
    names = ("device-plugins", "plugins", "plugins_registry", "pods")
    of_kubelet = {f"/var/lib/kubelet/{name}" for name in names}
    everywhere = {"/var/lib/cni", "/var/lib/nodeleak", "/var/run", "/etc/cni/net.d", *of_kubelet}
    for name in AGENTS:
        # Kubernetes creates what a manifest mounts and the node lacks: nobody else gets a directory of docker.
        expected = (everywhere | own.get(name, set())) - DROPPED.get(name, {}).keys()
        assert mounts(name).keys() == expected, name
        for setting in DROPPED.get(name, {}).values():
            assert getattr(load("run", {}, environment(name)), setting) is None, name
        # Sockets are recreated, so directories are mounted.
        assert {mount["type"] for mount in mounts(name).values()} <= {
            "Directory",
            "DirectoryOrCreate",
        }
        # The node mounts network namespaces, volumes and secrets below these, and unmounts them.
        following = {
            path
            for path, mount in mounts(name).items()
            if mount.get("mountPropagation") == "HostToContainer"
        }
        sockets = {"/var/snap/microk8s/common/run"} if name == "overlays/microk8s" else set()
        shared = {"/var/run", "/var/lib/kubelet/plugins", "/var/lib/kubelet/pods"} | sockets
        assert following == shared - DROPPED.get(name, {}).keys()
    for name in FILES:
        assert not own[DOCKER] & mounts(name).keys(), name


def test_only_the_cleanup_overlays_can_write_reservations_and_only_one_cleans_by_itself() -> None:
    state, cni = "/var/lib/nodeleak", "/var/lib/cni"
    more = {
        "overlays/cleanup": {cni},
        LABELED: {cni},
        CLEANUP_EXEC: {cni},
        "overlays/data-dir": {cni, "/run/cni-ipam-state"},
    }
    assert {name: writable(name) for name in AGENTS} == {
        name: {state, *more.get(name, ())} for name in AGENTS
    }
    cleaning = {name: environment(name).get("NODELEAK_CLEANUP") for name in AGENTS}
    automatic = {"overlays/cleanup": "auto", LABELED: "auto"}
    assert {name: mode for name, mode in cleaning.items() if mode} == automatic
    labels = {name: environment(name).get("NODELEAK_CLEANUP_NODE_LABEL") for name in AGENTS}
    assert {name: label for name, label in labels.items() if label} == {
        LABELED: "nodeleak.dev/cleanup=auto"
    }


def test_the_agent_is_root_without_capabilities_on_every_node_even_a_broken_one() -> None:
    for name in AGENTS:
        se_linux = {"seLinuxOptions": {"type": "spc_t"}} if name == OPENSHIFT else {}
        assert container(name)["securityContext"] == se_linux | {
            "runAsUser": 0,
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        spec = pod_spec(name)
        assert (spec["hostNetwork"], spec["hostPID"], spec["dnsPolicy"]) == (True, True, "Default")
        assert spec["tolerations"] == [{"operator": "Exists"}]
        assert spec["priorityClassName"] == "system-node-critical"
        assert "cpu" not in container(name)["resources"]["limits"]
        (port,) = container(name)["ports"]
        assert port["containerPort"] == 9747
        probes = [
            container(name)[probe]["httpGet"]["path"]
            for probe in ("livenessProbe", "readinessProbe")
        ]
        assert probes == ["/healthz", "/readyz"]


def test_openshift_allows_what_the_agent_asks_for_and_no_more() -> None:
    """No OpenShift is here: these are the fields that its admission compares with the pod."""
    (allowed,) = of_kind(OPENSHIFT, "SecurityContextConstraints")
    spec, context = pod_spec(OPENSHIFT), container(OPENSHIFT)["securityContext"]
    kinds = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds <= {"hostPath"} <= set(allowed["volumes"])
    assert allowed["allowHostNetwork"] == spec["hostNetwork"] is True
    assert allowed["allowHostPID"] == spec["hostPID"] is True
    assert allowed["allowHostPorts"] is allowed["allowHostDirVolumePlugin"] is True
    assert allowed["allowHostIPC"] is False
    assert allowed["allowPrivilegedContainer"] == context["privileged"] is False
    assert allowed["allowPrivilegeEscalation"] == context["allowPrivilegeEscalation"] is False
    assert allowed["readOnlyRootFilesystem"] == context["readOnlyRootFilesystem"] is True
    assert allowed["requiredDropCapabilities"] == context["capabilities"]["drop"]
    assert allowed["seccompProfiles"] == ["runtime/default"]
    (role,) = (
        each for each in of_kind(OPENSHIFT, "ClusterRole") if each["metadata"]["name"] != "nodeleak"
    )
    assert role["rules"][0]["resourceNames"] == [allowed["metadata"]["name"]]


def test_with_tls_the_probes_use_https_and_the_secret_is_mounted_as_a_directory() -> None:
    files = {
        "overlays/metrics-tls": {"CERT": "tls.crt", "KEY": "tls.key"},
        "overlays/metrics-tls-client-ca": {
            "CERT": "tls.crt",
            "KEY": "tls.key",
            "CLIENT_CA": "ca.crt",
        },
    }
    for name in AGENTS:
        probes = [
            container(name)[probe]["httpGet"].get("scheme", "HTTP")
            for probe in ("livenessProbe", "readinessProbe")
        ]
        assert probes == ["HTTPS" if name in files else "HTTP"] * 2, name
        secrets = {
            volume["name"]: volume["secret"]["secretName"]
            for volume in pod_spec(name)["volumes"]
            if "secret" in volume
        }
        expected = {"metrics-tls": "nodeleak-metrics-tls"} if name in files else {}
        assert secrets == expected, name
        for setting, file in files.get(name, {}).items():
            path = environment(name)[f"NODELEAK_TLS_{setting}_FILE"]
            assert path == f"/etc/nodeleak/tls/{file}"
        for mount in container(name)["volumeMounts"]:
            assert "subPath" not in mount, "a renewed certificate would never arrive"


def test_the_monitors_verify_the_certificate_and_show_one(tmp_path: Path) -> None:
    only_with(kubectl_has_components(), "kubectl 1.21 or newer, which renders components")
    monitors = ("prometheus-operator", "prometheus-service-monitor")
    own = kustomization(
        tmp_path,
        resources=["../deploy/base", *(f"../deploy/overlays/{name}" for name in monitors)],
        components=["../deploy/overlays/metrics-tls-client-ca/component"],
    )
    found = {document["kind"]: document for document in render(own)}
    of_client = {"name": "nodeleak-metrics-client"}
    tls = {
        "ca": {"secret": {"name": "nodeleak-metrics-tls", "key": "ca.crt"}},
        "serverName": "nodeleak",
        "cert": {"secret": of_client | {"key": "tls.crt"}},
        "keySecret": of_client | {"key": "tls.key"},
    }
    for kind, key in (("PodMonitor", "podMetricsEndpoints"), ("ServiceMonitor", "endpoints")):
        (endpoint,) = found[kind]["spec"][key]
        assert (endpoint["scheme"], endpoint["tlsConfig"]) == ("https", tls)


def test_the_account_has_only_these_rights() -> None:
    reads = itertools.product([""], ["persistentvolumes", "persistentvolumeclaims"], ["get"])
    volumes = {
        ("storage.k8s.io", "volumeattachments", "get"),
        ("storage.k8s.io", "csinodes", "get"),
        ("", "events", "get"),
        ("", "events", "list"),
        *reads,
    }
    condition = BASE_RULES | {("", "nodes/status", "patch")}
    for name in ALL:
        expected = {
            NO_API: set(),
            OPENSHIFT: BASE_RULES
            | {("security.openshift.io", "securitycontextconstraints", "use")},
            "overlays/node-condition": condition,
            "overlays/volume-attachments": volumes,
            "overlays/cluster-autoscaler": {("", "configmaps", "get")},
        }
        allowed = expected.get(name, BASE_RULES if name in AGENTS else set())
        assert rules(name, "ClusterRole") == allowed, name
        reads_brake = name in AGENTS and name != NO_API
        assert rules(name, "Role") == (BRAKE_RULES if reads_brake else set()), name
        for role in of_kind(name, "Role"):
            assert set(rule_names(role)) <= {"nodeleak-brake"}, name
            assert role["metadata"]["namespace"] == "kube-system", name
        for binding in (*of_kind(name, "ClusterRoleBinding"), *of_kind(name, "RoleBinding")):
            account = {"kind": "ServiceAccount", "name": "nodeleak", "namespace": "kube-system"}
            assert binding["subjects"] == [account], name
    (role,) = of_kind("overlays/cluster-autoscaler", "ClusterRole")
    assert [rule.get("resourceNames") for rule in role["rules"]] == [["cluster-autoscaler-status"]]


def test_without_the_api_there_is_no_token_and_only_that_overlay_has_none() -> None:
    for name in AGENTS:
        is_without = name == NO_API
        assert pod_spec(name)["automountServiceAccountToken"] == (not is_without), name
        config = load("run", {}, environment(name))
        assert config.api == ("off" if is_without else "on"), name
        assert (config.brake == "off") == is_without, name


def test_pods_are_not_for_fargate_and_virtual_nodes() -> None:
    """A DaemonSet would create a pod for each, which stays Pending."""
    for name in AGENTS:
        affinity = pod_spec(name)["affinity"]["nodeAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        excluded = {each["key"]: each["values"] for each in term["matchExpressions"]}
        assert {each["operator"] for each in term["matchExpressions"]} == {"NotIn"}
        assert excluded == {
            "eks.amazonaws.com/compute-type": ["fargate"],
            "type": ["virtual-kubelet"],
        }


def test_the_right_to_list_events_can_be_taken_away(tmp_path: Path) -> None:
    shown = (DEPLOY / "README.md").read_text()
    (patches,) = re.findall(r"^patchesJson6902:\n(?:[ ].*\n)+", shown, re.MULTILINE)
    own = kustomization(tmp_path, resources=["../deploy/base"], **yaml.safe_load(patches))
    (role,) = (document for document in render(own) if document["kind"] == "ClusterRole")
    verbs = {rule["resources"][0]: rule["verbs"] for rule in role["rules"]}
    reads = ["list", "watch"]
    assert verbs == {"pods": reads, "nodes": reads, "events": ["create", "patch"]}


def test_the_port_can_be_another(tmp_path: Path) -> None:
    only_with(kubectl_has_components(), "kubectl 1.21 or newer, which knows `patches`")
    (example,) = (one for one in examples(DEPLOY / "README.md") if "containerPort" in str(one))
    (daemonset,) = (
        each for each in render(kustomization(tmp_path, **example)) if each["kind"] == "DaemonSet"
    )
    (agent,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert agent["ports"] == [{"name": "metrics", "containerPort": 9800, "hostPort": 9800}]
    given = {each["name"]: each.get("value", "worker-1") for each in agent["env"]}
    assert load("run", {}, given).listen == ("", 9800)


def filled(name: str, pattern: str, **variables: str) -> Any:
    """Return the object that the shell command in the head of a file makes of it."""
    shown = "\n".join(
        line.removeprefix("#   ") for line in (DEPLOY / name).read_text().splitlines()
    )
    (command,) = re.findall(pattern, shown, re.MULTILINE)
    command = command.replace("JOB=$(", "")
    assigned = " ".join(f"{key}={value}" for key, value in variables.items())
    return yaml.safe_load(run("bash", "-euc", f"cd {ROOT}; {assigned}\n{command}"))


def test_the_commands_of_the_job_and_of_the_pod_of_one_node_fill_in_node_mode_and_image() -> None:
    pattern = r"^(BREAK=.*\nJOB=\$\(sed [^|]*) \|\n +kubectl create -f - -o name\)$"
    options = "'--cleanup-network=auto,devnet --max-share=100% --ip=10.9.9.4,10.9.9.5'"
    for mode in ("--dry-run", "--apply"):
        job = filled(
            JOB,
            pattern,
            NODE="worker-1",
            MODE=mode,
            OPTIONS=options,
            IMAGE="your.registry/nodeleak:1",
        )
        assert (job["spec"]["backoffLimit"], job["spec"]["template"]["spec"]["restartPolicy"]) == (
            0,
            "Never",
        )
        (agent,) = job["spec"]["template"]["spec"]["containers"]
        assert job["spec"]["template"]["spec"]["nodeName"] == "worker-1"
        assert agent["image"] == "your.registry/nodeleak:1"
        assert parse_arguments(agent["args"]).apply == (mode == "--apply")
        assert agent["args"][2:] == shlex.split(options.strip("'"))
    pod = filled(ONE_NODE, r"^(sed .*) \| kubectl apply", NODE="worker-1", IMAGE="nodeleak:1")
    (daemonset,) = of_kind("base", "DaemonSet")
    template = daemonset["spec"]["template"]
    assert pod["metadata"] == template["metadata"] | {
        "name": "nodeleak-worker-1",
        "namespace": "kube-system",
    }
    spec = dict(template["spec"], nodeName="worker-1")
    # It is not scheduled, and evicts no other pod.
    del spec["nodeSelector"], spec["affinity"], spec["priorityClassName"]
    spec["containers"] = [container("base") | {"image": "nodeleak:1", "imagePullPolicy": "Never"}]
    assert pod["spec"] == spec


def test_the_commands_for_one_node_of_each_page_make_a_pod_that_finds_its_image() -> None:
    pages = {ROOT / "README.md": "Never", DEPLOY / "README.md": "Never"}
    for name, policy in {"k3s-rke2": "Never", "aks": "IfNotPresent", "gke": "IfNotPresent"}.items():
        pages[ROOT / f"docs/quickstart-{name}.md"] = policy
    for page, policy in pages.items():
        commands = re.findall(r"^(sed .*one-node\.yaml) \|", page.read_text(), re.MULTILINE)
        assert len(commands) == 1, page
        script = f"cd {ROOT}; NODE=worker-1 IMAGE=your.registry/nodeleak:1\n{commands[0]}"
        pod = yaml.safe_load(run("bash", "-euc", script))
        (agent,) = pod["spec"]["containers"]
        assert pod["metadata"]["name"] == "nodeleak-worker-1", page
        assert pod["spec"]["nodeName"] == "worker-1", page
        assert agent["image"] == "your.registry/nodeleak:1", page
        assert agent["imagePullPolicy"] == policy, page


def examples(page: Path) -> list[dict[str, Any]]:
    """Return the kustomizations that a page shows."""
    found = [
        yaml.safe_load(block)
        for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    if not kubectl_has_components():  # what the pages say for such a kubectl
        for example in found:
            example["bases"] = example.pop("bases", None) or example.pop("resources")
    return found


def test_the_examples_of_the_pages_render(tmp_path: Path) -> None:
    for number, page in enumerate((ROOT / "README.md", DEPLOY / "README.md")):
        (tmp_path / str(number)).mkdir()
        objects = render(kustomization(tmp_path / str(number), **examples(page)[0]))
        (daemonset,) = [document for document in objects if document["kind"] == "DaemonSet"]
        (agent,) = daemonset["spec"]["template"]["spec"]["containers"]
        assert agent["image"].startswith("your.registry/nodeleak:")
    (moved,) = [example for example in examples(DEPLOY / "README.md") if "namespace" in example]
    objects = render(kustomization(tmp_path, **moved))
    assert {document["metadata"].get("namespace") for document in objects} == {"nodeleak", None}


def test_the_mounts_that_an_audit_may_drop_are_gone(tmp_path: Path) -> None:
    only_with(kubectl_has_components(), "kubectl 1.21 or newer, which knows `patches`")
    (example,) = examples(ROOT / "docs/audit.md")
    objects = render(kustomization(tmp_path, **example))
    (daemonset,) = [document for document in objects if document["kind"] == "DaemonSet"]
    spec = daemonset["spec"]["template"]["spec"]
    (agent,) = spec["containers"]
    mounted = {mount["name"]: mount["mountPath"] for mount in agent["volumeMounts"]}
    assert {volume["name"] for volume in spec["volumes"]} == mounted.keys()
    assert [path for path in mounted.values() if path.startswith("/var/lib/kubelet")] == []
    environment = {each["name"]: each.get("value") for each in agent["env"]}
    assert (load("run", {"node": "worker-1"}, environment).kubelet_dir) is None
    assert (load("run", {"node": "worker-1"}, environment).device_plugins_dir) is None


def test_a_kubectl_without_components_combines_overlays_by_copies(tmp_path: Path) -> None:
    (example,) = [
        example for example in examples(DEPLOY / "README.md") if "patchesStrategicMerge" in example
    ]
    own = kustomization(tmp_path, **example)
    shutil.copy(DEPLOY / DOCKER / "component/daemonset.yaml", own / "docker.yaml")
    (daemonset,) = [document for document in render(own) if document["kind"] == "DaemonSet"]
    (agent,) = daemonset["spec"]["template"]["spec"]["containers"]
    paths = {mount["mountPath"]: mount.get("readOnly", False) for mount in agent["volumeMounts"]}
    assert (paths["/var/lib/cni"], paths["/var/lib/dockershim"]) == (False, True)
