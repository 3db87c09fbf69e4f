"""The chart is the kustomizations of deploy/, object by object."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from tests.deploy.helm import CHART, RELEASE, helm, template
from tests.deploy.manifests import (
    ALL,
    COMPONENTS,
    ROOT,
    Object,
    kubectl_has_components,
    kustomization,
    render,
    rendered,
)
from tests.wire import only_with

ON: Final = {"enabled": True}
VALUES: Final[dict[str, dict[str, Any]]] = {
    "base": {},
    "overlays/admission-policy": {"admissionPolicy": True},
    "overlays/cleanup": {"cleanup": "auto"},
    "overlays/cleanup-labeled": {
        "cleanup": "auto",
        "env": {"NODELEAK_CLEANUP_NODE_LABEL": "nodeleak.dev/cleanup=auto"},
    },
    "overlays/cleanup-exec": {"cleanup": "exec"},
    "overlays/cluster-autoscaler": {"clusterAutoscaler": True},
    "overlays/data-dir": {"cleanup": "exec", "dataDir": "/run/cni-ipam-state"},
    "overlays/docker": {"docker": True},
    "overlays/metrics-tls": {"tls": {"secretName": "nodeleak-metrics-tls"}},
    "overlays/metrics-tls-client-ca": {
        "tls": {"secretName": "nodeleak-metrics-tls", "clientCa": True}
    },
    "overlays/microk8s": {"microk8s": True},
    "overlays/no-api": {"api": False},
    "overlays/no-device-plugins": {"devicePlugins": False},
    "overlays/no-kubelet-volumes": {"kubeletVolumes": False},
    "overlays/node-condition": {"nodeCondition": True},
    "overlays/openshift": {"openShift": True},
    "overlays/prometheus-annotations": {"prometheusAnnotations": True},
    "overlays/prometheus-operator": {"podMonitor": ON, "prometheusRule": ON},
    "overlays/prometheus-service-monitor": {"serviceMonitor": ON},
    "overlays/volume-attachments": {"volumeAttachments": True},
}
"""What stands for each kustomization."""
OF_RELEASE: Final = {"app.kubernetes.io/instance": RELEASE}
ADDED: Final = [
    name for name in ALL if name not in {"base", *COMPONENTS, "overlays/prometheus-service-monitor"}
]
"""Those that do not contain the base, but one of the two for Prometheus."""
COMBINED: Final = [name for name in COMPONENTS if name != "overlays/no-api"]
"""Without its rights, the agent has no use for those that others grant."""


def by_name(objects: Any) -> dict[tuple[str, str], Object]:
    """Return the objects as Helm manages them, with the lists in order whose entries are known by their names."""
    text = json.dumps(list(objects)).replace('managed-by": "kustomize"', 'managed-by": "Helm"')
    found = {(entry["kind"], entry["metadata"]["name"]): entry for entry in json.loads(text)}
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    for entry in found.values():
        entry["metadata"]["labels"] |= OF_RELEASE | {"helm.sh/chart": f"nodeleak-{version}"}
    found["DaemonSet", "nodeleak"]["spec"]["template"]["metadata"]["labels"] |= OF_RELEASE
    pod = found["DaemonSet", "nodeleak"]["spec"]["template"]["spec"]
    for owner, key in (
        (pod, "volumes"),
        (pod["containers"][0], "env"),
        (pod["containers"][0], "volumeMounts"),
    ):
        owner[key].sort(key=lambda entry: entry["name"])
    return found


def test_the_chart_has_what_each_kustomization_has() -> None:
    assert VALUES.keys() == set(ALL), "the chart needs a value for each overlay"
    base = rendered("base")
    for name, values in VALUES.items():
        expected = rendered(name) if name in {"base", *COMPONENTS} else (*base, *rendered(name))
        assert by_name(template(values)) == by_name(expected), name


def test_the_chart_has_real_files_which_survive_flux_and_an_archive() -> None:
    """That they equal deploy/base and deploy/overlays, `hack/manifests --check` tells."""
    files = list(CHART.rglob("*"))
    assert {CHART / "base/rbac.yaml", CHART / "grafana/nodeleak.json"} <= set(files)
    assert [path for path in files if path.is_symlink()] == []


def test_all_of_them_together_in_a_namespace_of_its_own(tmp_path: Path) -> None:
    only_with(kubectl_has_components(), "kubectl 1.21 or newer, which renders components")
    names = [*ADDED, *COMBINED]
    values = {key: value for name in names for key, value in VALUES[name].items()} | {
        "cleanup": "auto",
        "tls": VALUES["overlays/metrics-tls-client-ca"]["tls"],
    }
    expected = render(
        kustomization(
            tmp_path,
            namespace="nodeleak",
            resources=["../deploy/base", *(f"../deploy/{name}" for name in ADDED)],
            components=[f"../deploy/{name}/component" for name in COMBINED],
        )
    )
    for document in expected:
        # kustomize gives these cluster-scoped kinds a namespace, which the API server drops.
        if document["kind"].startswith(("Validating", "SecurityContext")):
            document["metadata"].pop("namespace", None)
    assert by_name(template(values, "nodeleak")) == by_name(expected)


def test_the_other_values_change_the_agent_and_nothing_else() -> None:
    digest = f"sha256:{'0a' * 32}"
    values: dict[str, Any] = {
        "image": {
            "repository": "your.registry/nodeleak",
            "tag": "9",
            "digest": digest,
            "pullPolicy": "Always",
        },
        "imagePullSecrets": [{"name": "your-registry"}],
        "extraArgs": ["--interval=10s"],
        "env": {"NODELEAK_SETTLE": "1h", "NODELEAK_NODE": "worker-1"},
        "resources": {"limits": {"memory": "1Gi"}},
        "nodeSelector": {"pool": "workers"},
        "tolerations": [{"key": "pool", "operator": "Exists"}],
        "priorityClassName": "high",
        "seLinuxOptions": {"type": "spc_t"},
    }
    expected = by_name(rendered("base"))
    pod = expected["DaemonSet", "nodeleak"]["spec"]["template"]["spec"]
    pod |= {key: values[key] for key in ("imagePullSecrets", "tolerations", "priorityClassName")}
    pod["nodeSelector"]["pool"] = "workers"
    (agent,) = pod["containers"]
    agent |= {
        "image": f"your.registry/nodeleak@{digest}",
        "imagePullPolicy": "Always",
        "resources": values["resources"],
    }
    agent["args"].append("--interval=10s")
    agent["securityContext"]["seLinuxOptions"] = {"type": "spc_t"}
    kept = [variable for variable in agent["env"] if variable["name"] != "NODELEAK_NODE"]
    changed = [{"name": name, "value": value} for name, value in sorted(values["env"].items())]
    agent["env"] = sorted([*kept, *changed], key=lambda variable: str(variable["name"]))
    assert by_name(template(values)) == expected
    tagged = by_name(template({"image": {"tag": "9"}}))["DaemonSet", "nodeleak"]["spec"][
        "template"
    ]["spec"]
    assert tagged["containers"][0]["image"] == "registry.invalid/nodeleak:9"


def test_the_right_to_list_events_can_be_taken_away() -> None:
    base, without = by_name(template({})), by_name(template({"listEvents": False}))
    of_events = (
        next(
            rule
            for rule in objects["ClusterRole", "nodeleak"]["rules"]
            if rule["resources"] == ["events"]
        )
        for objects in (base, without)
    )
    assert [rule["verbs"] for rule in of_events] == [
        ["create", "patch", "list"],
        ["create", "patch"],
    ]
    del base["ClusterRole", "nodeleak"], without["ClusterRole", "nodeleak"]
    assert base == without


def test_a_data_directory_is_writable_only_with_cleanup() -> None:
    for cleanup, read_only in (("off", True), ("exec", False), ("auto", False)):
        objects = by_name(template({"cleanup": cleanup, "dataDir": "/data/cni"}))
        (agent,) = objects["DaemonSet", "nodeleak"]["spec"]["template"]["spec"]["containers"]
        mounts = {
            mount["mountPath"]: mount.get("readOnly", False) for mount in agent["volumeMounts"]
        }
        assert (mounts["/var/lib/cni"], mounts["/data/cni"]) == (read_only, read_only)


def test_prometheus_finds_the_objects_by_their_labels_and_scrapes_as_often_as_is_asked() -> None:
    often = {"interval": "60s"}
    for kind, values in (("PodMonitor", often), ("ServiceMonitor", often), ("PrometheusRule", {})):
        value = kind[0].lower() + kind[1:]
        plain, changed = (
            by_name(template({value: ON | more}))
            for more in ({}, {"labels": {"release": "stack"}} | values)
        )
        expected = plain[kind, "nodeleak"]
        expected["metadata"]["labels"]["release"] = "stack"
        for endpoint in expected["spec"].get(
            "podMetricsEndpoints", expected["spec"].get("endpoints", ())
        ):
            endpoint.update(values)
        assert changed == plain


def test_the_secrets_and_the_name_of_the_certificate_can_be_others() -> None:
    plain, changed = (
        by_name(template({"podMonitor": ON, "tls": tls}))
        for tls in (
            {"secretName": "nodeleak-metrics-tls", "clientCa": True},
            {
                "secretName": "port",
                "clientCa": True,
                "serverName": "agent.example",
                "clientSecretName": "scraper",
            },
        )
    )
    text = json.dumps([plain["DaemonSet", "nodeleak"], plain["PodMonitor", "nodeleak"]])
    for old, new in (
        ('"secretName": "nodeleak-metrics-tls"', '"secretName": "port"'),
        ('"name": "nodeleak-metrics-tls"', '"name": "port"'),
        ('"name": "nodeleak-metrics-client"', '"name": "scraper"'),
        ('"serverName": "nodeleak"', '"serverName": "agent.example"'),
    ):
        assert old in text
        text = text.replace(old, new)
    expected = json.loads(text)
    assert [changed["DaemonSet", "nodeleak"], changed["PodMonitor", "nodeleak"]] == expected


def test_values_that_mean_nothing_are_refused_and_the_linter_accepts_the_chart() -> None:
    for setting, why in (
        ("cleanup=on", "cleanup"),
        ("docker=yes", "docker"),
        ("dockr=true", "dockr"),
        ("image.digest=0123", "digest"),
        ("dataDir=run/cni", "dataDir"),
        ("podMonitor.enabled=true,serviceMonitor.enabled=true", "enable one of them"),
        ("tls.clientCa=true", "tls.clientCa needs tls.secretName"),
        ("tls.secret=x", "secret"),
        ("cleanup=auto,env.NODELEAK_CLEANUP=dry-run", "remove one"),
        ("cleanup=auto,cleanupPool.enabled=true", "cleanupPool needs cleanup=off or exec"),
    ):
        refused = helm("template", "any-name", str(CHART), f"--set={setting}", codes=(1,))
        assert why in refused.stderr, setting
    for setting in ("cleanup=off", "cleanup=false"):
        helm("template", "any-name", str(CHART), f"--set={setting}")
    output = helm("lint", "--strict", str(CHART)).stdout
    assert not re.search(r"\[(INFO|WARNING|ERROR)\]", output), output
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_the_pool_has_a_daemon_set_of_its_own_with_the_only_writable_mount() -> None:
    values = {
        "env": {"NODELEAK_CLEANUP": "dry-run", "NODELEAK_SETTLE": "1h"},
        "cleanupPool": {"enabled": True, "env": {"NODELEAK_MAX_PER_SYNC": "1"}},
    }
    found = {
        each["metadata"]["name"]: each for each in template(values) if each["kind"] == "DaemonSet"
    }
    assert found.keys() == {"nodeleak", "nodeleak-cleanup"}
    terms, others, environments, read_only = {}, {}, {}, {}
    for name, each in found.items():
        spec = each["spec"]["template"]["spec"]
        (agent,) = spec["containers"]
        required = spec["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        (term,) = required["nodeSelectorTerms"]
        *others[name], terms[name] = term["matchExpressions"]
        environments[name] = {one["name"]: one.get("value") for one in agent["env"]}
        read_only[name] = {
            mount["mountPath"]: mount.get("readOnly", False) for mount in agent["volumeMounts"]
        }
        labels = each["spec"]["template"]["metadata"]["labels"]
        assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()
    label = {"key": "nodeleak.dev/cleanup", "values": ["auto"]}
    assert terms == {
        "nodeleak": label | {"operator": "NotIn"},
        "nodeleak-cleanup": label | {"operator": "In"},
    }
    assert others["nodeleak"] == others["nodeleak-cleanup"] == _expressions(template({}))
    assert read_only["nodeleak"]["/var/lib/cni"]
    assert read_only["nodeleak-cleanup"] == read_only["nodeleak"] | {"/var/lib/cni": False}
    modes = {name: env["NODELEAK_CLEANUP"] for name, env in environments.items()}
    assert modes == {"nodeleak": "dry-run", "nodeleak-cleanup": "auto"}
    assert environments["nodeleak-cleanup"]["NODELEAK_MAX_PER_SYNC"] == "1"
    assert "NODELEAK_MAX_PER_SYNC" not in environments["nodeleak"]
    settles = {env["NODELEAK_SETTLE"] for env in environments.values()}
    assert settles == {"1h"}, "what is not about cleanup is the same"


def test_the_pool_is_added_to_an_affinity_of_ones_own() -> None:
    rules = [{"key": "zone", "operator": "In", "values": ["a"]}]
    required = {"nodeSelectorTerms": [{"matchExpressions": rules}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    for values in ({}, {"affinity": affinity}):
        both = template(values | {"cleanupPool": {"enabled": True}})
        for name, operator in {"nodeleak": "NotIn", "nodeleak-cleanup": "In"}.items():
            *before, pool = _expressions(both, name)
            assert before == _expressions(template(values))
            assert (pool["key"], pool["operator"]) == ("nodeleak.dev/cleanup", operator)


def _expressions(objects: list[dict[str, Any]], name: str = "nodeleak") -> list[dict[str, Any]]:
    """Return what a DaemonSet requires of its nodes."""
    (found,) = (
        each for each in objects if each["kind"] == "DaemonSet" and each["metadata"]["name"] == name
    )
    affinity = found["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    expressions: list[dict[str, Any]] = term["matchExpressions"]
    return expressions
