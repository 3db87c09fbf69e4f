"""Each value of the chart lands where it should, and what other charts call it is refused by the name of ours."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from tests.deploy.helm import CHART, RELEASE, helm, template
from tests.deploy.manifests import ROOT, Object

SCHEMA: Final[dict[str, Any]] = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: Final[dict[str, Any]] = yaml.safe_load((CHART / "values.yaml").read_text())
ON: Final = {"enabled": True}
POD: Final = "spec.template.spec"
AGENT: Final = f"{POD}.containers.0"
ENDPOINT: Final = "spec.podMetricsEndpoints.0"
CONFIG_MAP: Final = [{"name": "ca", "configMap": {"name": "ca"}}]
MOUNT: Final = [{"name": "ca", "mountPath": "/etc/ca"}]
FROM_SECRET: Final = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}
DROP: Final = {"action": "drop", "regex": "nodeleak_sync.*", "sourceLabels": ["__name__"]}
ON_WORKERS: Final[Object] = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}
}
LANDS: Final[list[tuple[dict[str, Any], str, Mapping[str, Any]]]] = [
    (
        {"metricsPort": 9800, "prometheusAnnotations": True},
        "DaemonSet",
        {
            f"{AGENT}.ports.0.containerPort": 9800,
            f"{AGENT}.ports.0.hostPort": 9800,
            f"{AGENT}.livenessProbe.httpGet.port": "metrics",
            f"{AGENT}.readinessProbe.httpGet.port": "metrics",
            f"{AGENT}.env.NODELEAK_LISTEN.value": ":9800",
            "spec.template.metadata.annotations.prometheus\\.io/port": "9800",
        },
    ),
    ({"metricsPort": 9800, "serviceMonitor": ON}, "Service", {"spec.ports.0.port": 9800}),
    ({"metricsPort": 9800, "podMonitor": ON}, "PodMonitor", {f"{ENDPOINT}.port": "metrics"}),
    (
        {"listenAddress": "127.0.0.1"},
        "DaemonSet",
        {
            f"{AGENT}.env.NODELEAK_LISTEN.value": "127.0.0.1:9747",
            f"{AGENT}.ports.0.hostIP": "127.0.0.1",
            f"{AGENT}.livenessProbe.httpGet.host": "127.0.0.1",
            f"{AGENT}.readinessProbe.httpGet.host": "127.0.0.1",
        },
    ),
    (
        {"listenAddress": "fd00::1"},
        "DaemonSet",
        {
            f"{AGENT}.env.NODELEAK_LISTEN.value": "[fd00::1]:9747",
            f"{AGENT}.livenessProbe.httpGet.host": "fd00::1",
        },
    ),
    ({"statusPage": False}, "DaemonSet", {f"{AGENT}.env.NODELEAK_PAGE.value": "off"}),
    (
        {"global": {"imageRegistry": "mirror.example:5000"}},
        "DaemonSet",
        {f"{AGENT}.image": "mirror.example:5000/nodeleak:0.1.0"},
    ),
    (
        {"image": {"registry": "own.example/x"}, "global": {"imageRegistry": "mirror.example"}},
        "DaemonSet",
        {f"{AGENT}.image": "own.example/x/nodeleak:0.1.0"},
    ),
    (
        {"image": {"repository": "team/nodeleak"}, "global": {"imageRegistry": "mirror.example"}},
        "DaemonSet",
        {f"{AGENT}.image": "mirror.example/team/nodeleak:0.1.0"},
    ),
    (
        {
            "imagePullSecrets": [{"name": "a"}],
            "global": {"imagePullSecrets": ["b", {"name": "c"}, "a"]},
        },
        "DaemonSet",
        {f"{POD}.imagePullSecrets": [{"name": "b"}, {"name": "c"}, {"name": "a"}]},
    ),
    (
        {"affinity": {"podAffinity": {"a": []}}},
        "DaemonSet",
        {
            f"{POD}.affinity.podAffinity": {"a": []},
            f"{POD}.affinity.nodeAffinity.{next(iter(ON_WORKERS))}.nodeSelectorTerms.0."
            "matchExpressions.1.values": ["virtual-kubelet"],
        },
    ),
    (
        {"affinity": {"nodeAffinity": ON_WORKERS}},
        "DaemonSet",
        {f"{POD}.affinity": {"nodeAffinity": ON_WORKERS}},
    ),
    (
        {
            "commonLabels": {"team": "a"},
            "podLabels": {"pod": "b"},
            "commonAnnotations": {"c": "d"},
            "podAnnotations": {"e": "f"},
        },
        "DaemonSet",
        {
            "metadata.labels.team": "a",
            "metadata.labels.pod": None,
            "metadata.annotations": {"c": "d"},
            "spec.template.metadata.labels.team": "a",
            "spec.template.metadata.labels.pod": "b",
            "spec.template.metadata.labels.helm\\.sh/chart": None,
            "spec.template.metadata.annotations.e": "f",
            "spec.template.metadata.annotations.c": None,
        },
    ),
    (
        {
            "updateStrategy": {"type": "OnDelete"},
            "revisionHistoryLimit": 0,
            "minReadySeconds": 5,
            "terminationGracePeriodSeconds": 30,
            "priorityClassName": "high",
            "livenessProbe": {"periodSeconds": 20, "initialDelaySeconds": 0},
            "readinessProbe": {"failureThreshold": 5},
        },
        "DaemonSet",
        {
            "spec.updateStrategy": {"type": "OnDelete"},
            "spec.revisionHistoryLimit": 0,
            "spec.minReadySeconds": 5,
            f"{POD}.terminationGracePeriodSeconds": 30,
            f"{POD}.priorityClassName": "high",
            f"{AGENT}.livenessProbe.periodSeconds": 20,
            f"{AGENT}.livenessProbe.initialDelaySeconds": 0,
            f"{AGENT}.livenessProbe.timeoutSeconds": 5,
            f"{AGENT}.readinessProbe.failureThreshold": 5,
        },
    ),
    (
        {"extraEnv": [FROM_SECRET], "extraVolumes": CONFIG_MAP, "extraVolumeMounts": MOUNT},
        "DaemonSet",
        {
            f"{AGENT}.env.TOKEN": FROM_SECRET,
            f"{POD}.volumes.ca": CONFIG_MAP[0],
            f"{AGENT}.volumeMounts.ca": MOUNT[0],
        },
    ),
    (
        {"serviceAccount": {"name": "sa", "annotations": {"role": "r"}, "automount": True}},
        "ServiceAccount",
        {
            "metadata.name": "sa",
            "metadata.annotations.role": "r",
            "automountServiceAccountToken": True,
        },
    ),
    (
        {"serviceAccount": {"name": "sa"}},
        "ClusterRoleBinding",
        {
            "metadata.name": "nodeleak",
            "subjects.0.name": "sa",
            "subjects.0.namespace": "kube-system",
        },
    ),
    (
        {"serviceAccount": {"name": "sa"}, "admissionPolicy": True},
        "ValidatingAdmissionPolicy",
        {
            "spec.matchConditions.0.expression": "request.userInfo.username.matches("
            "'^system:serviceaccount:[^:]+:sa$')"
        },
    ),
    (
        {"openShift": True, "fullnameOverride": "agent", "api": False, "rbac": {"create": True}},
        "SecurityContextConstraints",
        {"metadata.name": "agent", "metadata.namespace": None, "readOnlyRootFilesystem": True},
    ),
    (
        {
            "podMonitor": ON
            | {
                "namespace": "monitoring",
                "annotations": {"a": "b"},
                "scrapeTimeout": "5s",
                "sampleLimit": 500,
                "relabelings": [{"targetLabel": "x"}],
                "metricRelabelings": [DROP],
                "jobLabel": "app.kubernetes.io/name",
                "podTargetLabels": ["team"],
            }
        },
        "PodMonitor",
        {
            "metadata.namespace": "monitoring",
            "metadata.annotations.a": "b",
            "spec.namespaceSelector.matchNames": ["kube-system"],
            "spec.sampleLimit": 500,
            "spec.jobLabel": "app.kubernetes.io/name",
            "spec.podTargetLabels": ["team"],
            f"{ENDPOINT}.scrapeTimeout": "5s",
            f"{ENDPOINT}.relabelings.0.targetLabel": "node",
            f"{ENDPOINT}.relabelings.2": {"targetLabel": "x"},
            f"{ENDPOINT}.metricRelabelings": [DROP],
        },
    ),
    (
        {
            "tls": {"secretName": "t"},
            "serviceMonitor": ON | {"tlsConfig": {"insecureSkipVerify": True}},
        },
        "ServiceMonitor",
        {
            "spec.endpoints.0.scheme": "https",
            "spec.endpoints.0.tlsConfig": {"insecureSkipVerify": True},
        },
    ),
    (
        {
            "dashboard": ON
            | {
                "namespace": "monitoring",
                "labels": {"board": "x"},
                "annotations": {"grafana_folder": "Nodes"},
            }
        },
        "ConfigMap",
        {
            "metadata.name": "nodeleak-dashboard",
            "metadata.namespace": "monitoring",
            "metadata.labels.grafana_dashboard": "1",
            "metadata.labels.board": "x",
            "metadata.annotations.grafana_folder": "Nodes",
            "data.nodeleak\\.json": (ROOT / "deploy/grafana/nodeleak.json").read_text(),
        },
    ),
]
"""Values, the kind of the object, and what is where in it."""

WORKS: Final = (
    "affinity.podAntiAffinity.a=b",
    "commonAnnotations.a=b",
    "commonLabels.a=b",
    "dashboard.enabled=true",
    "env.NODELEAK_SETTLE=1h",
    "extraArgs[0]=--interval=10s",
    "extraEnv[0].name=A,extraEnv[0].value=b",
    "extraVolumeMounts[0].name=cni,extraVolumeMounts[0].mountPath=/a",
    "extraVolumes[0].name=a,extraVolumes[0].emptyDir.medium=Memory",
    "fullnameOverride=agent",
    "global.imagePullSecrets[0].name=a",
    "global.imageRegistry=mirror.example",
    "image.registry=mirror.example",
    "image.tag=v9",
    "imagePullSecrets[0].name=a",
    "livenessProbe.periodSeconds=20",
    "metricsPort=9800",
    "minReadySeconds=3",
    "nameOverride=agent",
    "namespaceOverride=a",
    "nodeSelector.a=b",
    "podAnnotations.a=b",
    "podLabels.a=b",
    "podMonitor.enabled=true,podMonitor.scrapeTimeout=5s",
    "priorityClassName=a",
    "prometheusRule.enabled=true",
    "rbac.create=false",
    "readinessProbe.failureThreshold=5",
    "resources.limits.memory=1Gi",
    "revisionHistoryLimit=3",
    "serviceAccount.annotations.a=b",
    "serviceAccount.automount=true",
    "serviceAccount.create=false,serviceAccount.name=a",
    "serviceAccount.name=a",
    "serviceMonitor.enabled=true,serviceMonitor.relabelings[0].targetLabel=a",
    "terminationGracePeriodSeconds=30",
    "tolerations[0].key=a",
    "updateStrategy.rollingUpdate.maxUnavailable=1",
)
"""Values of the charts of other node agents and of `helm create` that this chart has too."""
REFUSED: Final[Mapping[str, str]] = {
    "annotations.a=b": "use commonAnnotations",
    "args[0]=--listen=:9800": "use extraArgs",
    "autoscaling.enabled=true": "use nodeSelector",
    "containerSecurityContext.privileged=true": "use seLinuxOptions",
    "daemonsetAnnotations.a=b": "use commonAnnotations",
    "dashboard.folder=a": "use annotations",
    "cleanupPool.enabled=true,cleanupPool.env.NODELEAK_BRAKE=stop": "use rbac.create=false",
    "env.NODELEAK_BRAKE=other/nodeleak-brake": "use rbac.create=false",
    "env.NODELEAK_LISTEN=:9800": "use metricsPort",
    "env.NODELEAK_TLS_CERT_FILE=/a": "use tls.secretName",
    "envFrom[0].secretRef.name=a": "use extraEnv",
    "extraArgs[0]=--listen=:9800": "use metricsPort",
    "extraArgs[0]=--tls-client-ca-file": "use tls.clientCa",
    "extraContainers[0].name=a": "helm --post-renderer",
    "extraEnv[0].name=NODELEAK_LISTEN": "use metricsPort",
    "extraEnvVars[0].name=a": "use env",
    "extraHostVolumeMounts[0].name=a": "use extraVolumes",
    "extraManifests[0].kind=a": "apply them beside it",
    "hostNetwork=false": "the agent needs it",
    "hostPID=false": "the agent needs it",
    "ingress.enabled=true": "use podMonitor",
    "initContainers[0].name=a": "helm --post-renderer",
    "kubeRBACProxy.enabled=true": "use tls.secretName",
    "labels.a=b": "use commonLabels",
    "livenessProbe.httpGet.port=9800": "use metricsPort",
    "maxUnavailable=1": "use updateStrategy",
    "metrics.port=9800": "use podMonitor",
    "networkPolicy.enabled=true": "use listenAddress",
    "podDisruptionBudget.enabled=true": "use updateStrategy",
    "podLabels.app\\.kubernetes\\.io/name=a": "must be 'nodeleak'",
    "podMonitor.additionalLabels.a=b": "use labels",
    "podSecurityContext.runAsUser=1": "use seLinuxOptions",
    "podSecurityPolicy.create=true": "pod-security.kubernetes.io",
    "port=9800": "use metricsPort",
    "prometheus.monitor.enabled=true": "use podMonitor",
    "prometheusRule.additionalRules[0].alert=a": "use extraRules",
    "prometheusRule.alerts.NodeleakAgentDown.expr=a": "use prometheusRule.thresholds",
    "prometheusRule.defaultRules.create=false": "use alerts",
    "prometheusRule.enabled=true,prometheusRule.alerts.NoSuch.for=5m": "NodeleakAgentDown",
    "rbac.pspEnabled=true": "pod-security.kubernetes.io",
    "replicaCount=2": "use nodeSelector",
    "securityContext.privileged=true": "use seLinuxOptions",
    "service.port=9800": "use serviceMonitor.enabled, and metricsPort",
    "serviceAccount.create=false": "serviceAccount.name",
    "sidecars[0].name=a": "helm --post-renderer",
    "volumeMounts[0].name=a": "use extraVolumeMounts",
    "volumes[0].name=a": "use extraVolumes",
    "api=false,nodeCondition=true": "api=true",
    "extraVolumes[0].name=cni": "another name",
    "listenAddress=127.0.0.1,podMonitor.enabled=true": "loopback",
    "metricsPort=80": "metricsPort",
    "podMonitor.enabled=true,podMonitor.tlsConfig.insecureSkipVerify=true": "tls.secretName",
}
"""What they call it, or what would break the agent, and what the error must say."""


def only(objects: list[Object], kind: str) -> Object:
    (found,) = [each for each in objects if each["kind"] == kind]
    return found


def at(document: Any, path: str) -> Any:
    """Return what is at a path; in a list, by index or by the entry's name. None if it is missing."""
    for part in re.split(r"(?<!\\)\.", path):
        key = part.replace("\\.", ".")
        if isinstance(document, list):
            by_name = {each.get("name"): each for each in document}
            document = document[int(key)] if key.isdigit() else by_name.get(key)
        else:
            document = (document or {}).get(key)
    return document


def test_each_value_lands_where_it_should() -> None:
    for values, kind, expected in LANDS:
        found = only(template(values), kind)
        assert {path: at(found, path) for path in expected} == expected, values


def render_with(setting: str) -> "tuple[str, subprocess.CompletedProcess[str]]":
    command = ("template", RELEASE, str(CHART), "--no-hooks", "--set", setting)
    return setting, helm(*command, codes=(0, 1))


def test_what_people_set_first_works_or_is_refused_by_the_name_of_the_value_to_use() -> None:
    (_, plain) = render_with("global.other=a")
    with ThreadPoolExecutor(2) as pool:
        for setting, done in pool.map(render_with, WORKS):
            assert (done.returncode, done.stderr) == (0, ""), setting
            assert done.stdout != plain.stdout, f"{setting} is ignored"
        for setting, done in pool.map(render_with, REFUSED):
            assert done.returncode == 1, f"{setting} is accepted"
            assert REFUSED[setting] in done.stderr, setting


def groups(schema: Object, values: Object) -> Iterator[tuple[Object, Object]]:
    """Yield the schema and the defaults of each group of values that the chart itself names."""
    yield schema["properties"], values
    for name, value in values.items():
        inner = schema["properties"][name]
        inner = SCHEMA["definitions"].get(inner.get("$ref", "").rpartition("/")[2], inner)
        if isinstance(value, dict) and value.keys() & inner.get("properties", {}).keys():
            yield from groups(inner, value)


def hints(schema: Any) -> Iterator[str]:
    """Yield the constants that tell which value to use instead."""
    if isinstance(schema, dict):
        yield from (value for name, value in schema.items() if name == "const")
        schema = [value for name, value in schema.items() if name != "const"]
    if isinstance(schema, list):
        for value in schema:
            yield from hints(value)


def test_the_schema_has_every_value_and_its_errors_name_only_such() -> None:
    names = set[str]()
    for properties, values in groups(SCHEMA, DEFAULTS):
        accepted = {name for name, one in properties.items() if "const" not in one}
        of_parent = {"enabled"} if properties is SCHEMA["properties"] else set[str]()
        assert accepted - of_parent == values.keys()
        names |= accepted
    for hint in set(hints(SCHEMA)) - {"nodeleak", "agent"}:
        named = re.findall(r"\b(?:use|or|and) (?!a |an )([a-zA-Z]+)", hint)
        text = ("not a value of this chart", "the agent needs", "label the namespace", "set its")
        assert names & set(named) or hint.startswith(text), hint


def test_a_null_takes_a_value_away() -> None:
    (_, done) = render_with("revisionHistoryLimit=null,terminationGracePeriodSeconds=null")
    daemonset = only([each for each in yaml.safe_load_all(done.stdout) if each], "DaemonSet")
    assert at(daemonset, "spec.revisionHistoryLimit") is None
    assert at(daemonset, f"{POD}.terminationGracePeriodSeconds") == 10


def test_another_chart_can_contain_it_and_switch_it_off(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "charts/nodeleak")
    dependency = {"name": "nodeleak", "version": "*", "condition": "nodeleak.enabled"}
    chart = {"apiVersion": "v2", "name": "ours", "version": "1.0.0", "dependencies": [dependency]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(chart))
    assert template({"nodeleak": {"enabled": False}}, chart=tmp_path) == []
    values = {"enabled": True, "metricsPort": 9800}
    others = {"global": {"imageRegistry": "mirror.example", "storageClass": "a"}}
    daemonset = only(template({"nodeleak": values} | others, chart=tmp_path), "DaemonSet")
    assert at(daemonset, f"{AGENT}.ports.0.hostPort") == 9800
    assert at(daemonset, f"{AGENT}.image") == "mirror.example/nodeleak:0.1.0"


def test_the_readme_of_the_chart_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "hack/chart"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (ours)
    assert (done.returncode, done.stderr) == (0, ""), "run hack/chart again"
    # The page has only comments above a value.
    beside = re.findall(r"^[^#\n]*\S +#.*$", (CHART / "values.yaml").read_text(), re.MULTILINE)
    assert beside == []


def test_other_names_are_in_every_reference_and_in_no_selector() -> None:
    everything = {
        "fullnameOverride": "agent",
        "namespaceOverride": "elsewhere",
        "nodeCondition": True,
        "admissionPolicy": True,
        "serviceMonitor": ON,
        "prometheusRule": ON,
        "dashboard": ON,
    }
    plain = template({name: value for name, value in everything.items() if "Over" not in name})
    renamed = template(everything)
    for before, after in zip(plain, renamed, strict=True):
        old, new = before["metadata"], after["metadata"]
        assert new["name"] == re.sub("^nodeleak", "agent", old["name"])
        assert new.get("namespace") == ("elsewhere" if "namespace" in old else None)
        assert at(after, "spec.selector") == at(before, "spec.selector")
    by_kind = {each["kind"]: each for each in renamed}
    assert at(by_kind["DaemonSet"], f"{POD}.serviceAccountName") == "agent"
    for binding in (each for each in renamed if each["kind"].endswith("RoleBinding")):
        (subject,) = binding["subjects"]
        assert (subject["name"], subject["namespace"]) == ("agent", "elsewhere")
        assert binding["roleRef"]["name"] == binding["metadata"]["name"]
    (brake,) = (each for each in by_kind["Role"]["rules"] if "configmaps" in each["resources"])
    named = at(by_kind["DaemonSet"], f"{AGENT}.env.NODELEAK_BRAKE.value")
    assert brake["resourceNames"] == [named]
    policy = by_kind["ValidatingAdmissionPolicyBinding"]["spec"]["policyName"]
    assert policy == by_kind["ValidatingAdmissionPolicy"]["metadata"]["name"] == "agent-own-node"


def test_an_agent_without_the_api_has_no_rights_but_may_use_its_constraints() -> None:
    objects = template({"openShift": True, "fullnameOverride": "agent", "api": False})
    rules = {
        each["metadata"]["name"]: each["rules"] for each in objects if each["kind"] == "ClusterRole"
    }
    assert rules["agent"] == []
    (rule,) = rules["agent-scc"]
    assert (rule["resourceNames"], rule["verbs"]) == (["agent"], ["use"])


def test_rights_can_be_created_by_others() -> None:
    kinds = {each["kind"] for each in template({"rbac": {"create": False}})}
    assert kinds == {"ServiceAccount", "DaemonSet"}
    objects = template({"serviceAccount": {"create": False, "name": "sa"}})
    assert "ServiceAccount" not in {each["kind"] for each in objects}
    assert at(only(objects, "DaemonSet"), f"{POD}.serviceAccountName") == "sa"


def test_another_brake_needs_another_role() -> None:
    create = {"create": False}
    for name, values in (
        ("off", {}),
        ("kube-system/nodeleak-brake", {}),
        ("ops/stop", {"rbac": create}),
    ):
        objects = template({"env": {"NODELEAK_BRAKE": name}, **values})
        assert at(only(objects, "DaemonSet"), f"{AGENT}.env.NODELEAK_BRAKE.value") == name


def test_the_notes_say_what_is_missing(tmp_path: Path) -> None:
    """Helm prints them only for a cluster: here, an object has them."""
    chart = tmp_path / "nodeleak"
    shutil.copytree(CHART, chart)
    (chart / "templates/NOTES.txt").rename(chart / "NOTES.txt")
    text = 'notes: {{ tpl (.Files.Get "NOTES.txt") . | toJson }}\n'
    (chart / "templates/notes.yaml").write_text(text)
    for values, said in (
        ({}, "THE PODS CANNOT START"),
        ({"image": {"repository": "a/b"}}, "Nothing scrapes port 9747"),
        ({"metricsPort": 9800}, "Nothing scrapes port 9800"),
        ({"podMonitor": ON}, "No alerts are installed"),
        ({"api": False}, "no live pod protects its address"),
        ({"rbac": {"create": False}}, "needs the ClusterRole"),
        ({"rbac": {"create": False}, "namespaceOverride": "a"}, "in a its Role: without it"),
        ({"namespaceOverride": "a"}, "kubectl label namespace a "),
        ({"fullnameOverride": "agent"}, "exec daemonset/agent -- nodeleak scan"),
    ):
        (notes,) = (each["notes"] for each in template(values, chart=chart) if "notes" in each)
        assert said in notes, values
    quiet = {"image": {"repository": "a/b"}, "podMonitor": ON, "prometheusRule": ON}
    (notes,) = (each["notes"] for each in template(quiet, chart=chart) if "notes" in each)
    assert notes.count("\n\n") == 1, notes
