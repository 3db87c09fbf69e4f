"""The simulated cluster: what etcd holds of its nodes and pods, about as large as in a real one."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

PODS_PER_NODE: Final = 30
SHARED_PER_NODE: Final = 5
"""Secrets, and as many ConfigMaps, that the pods of a node use: the kubelet watches each one."""
SERVICES: Final = 100
NAMESPACES: Final = tuple(f"team-{number}" for number in range(50))
IMAGES: Final = 50
"""A kubelet reports so many."""
_THEN: Final = "2026-01-01T00:00:00Z"


def node_names(count: int) -> list[str]:
    return [f"worker-{number:05d}" for number in range(count)]


def pod_name(node: str, index: int) -> tuple[str, str]:
    """Return a pod's namespace and name."""
    number = int(node.rpartition("-")[2])
    return NAMESPACES[10 * (index % SHARED_PER_NODE) + number % 10], f"web-{number:05d}-{index:02d}"


def watched_objects(node: str) -> list[tuple[str, str, str]]:
    """Return namespace, resource and name of each Secret and ConfigMap that a node's pods use."""
    namespaces = sorted({pod_name(node, index)[0] for index in range(PODS_PER_NODE)})
    return [(one, kind, f"shop-{kind}") for one in namespaces for kind in ("secrets", "configmaps")]


def cluster(nodes: Sequence[str], pods: int = PODS_PER_NODE) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every object with its key in etcd."""
    for namespace in NAMESPACES:
        yield (
            f"/registry/namespaces/{namespace}",
            _object("v1", "Namespace", namespace, spec={"finalizers": ["kubernetes"]}),
        )
        for kind, resource in (("Secret", "secrets"), ("ConfigMap", "configmaps")):
            content = _object("v1", kind, f"shop-{resource}", namespace, data={"key": "dmFsdWVz" * 64})
            yield f"/registry/{resource}/{namespace}/shop-{resource}", content
    for number in range(SERVICES):
        namespace, name = NAMESPACES[number % len(NAMESPACES)], f"service-{number}"
        spec: dict[str, Any] = {
            "clusterIP": "None",
            "type": "ClusterIP",
            "selector": {"app": name},
            "ports": [{"name": "http", "port": 80}],
        }
        yield f"/registry/services/specs/{namespace}/{name}", _object("v1", "Service", name, namespace, spec=spec)
    for node in nodes:
        yield f"/registry/minions/{node}", node_object(node)
        spec = {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": "2026-01-01T00:00:00.000000Z"}
        lease = _object("coordination.k8s.io/v1", "Lease", node, "kube-node-lease", spec=spec)
        yield f"/registry/leases/kube-node-lease/{node}", lease
        for index in range(pods):
            namespace, name = pod_name(node, index)
            yield f"/registry/pods/{namespace}/{name}", pod_object(node, index)


def node_object(node: str) -> dict[str, Any]:
    amounts = {"cpu": "8", "memory": "32601220Ki", "pods": "110", "ephemeral-storage": "101430960Ki"}
    image = "registry.example.com/shop/service-{0}@sha256:{0:064d}"
    conditions = [
        {"type": kind, "status": "False", "lastHeartbeatTime": _THEN, "lastTransitionTime": _THEN, "reason": "Kubelet"}
        for kind in ("MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": _THEN, "lastTransitionTime": _THEN}
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": [*conditions, ready],
        "addresses": [{"type": "Hostname", "address": node}],
        "nodeInfo": {
            **dict.fromkeys(("machineID", "systemUUID", "bootID"), f"{node}-0123456789abcdef"),
            "kernelVersion": "5.10",
            "osImage": "Debian",
            "containerRuntimeVersion": "docker://19.3.15",
            "kubeletVersion": "v1.20.2",
            "kubeProxyVersion": "v1.20.2",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
        "images": [{"names": [image.format(number)], "sizeBytes": 10**8} for number in range(IMAGES)],
    }
    spec = {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"], "providerID": f"cloud://{node}"}
    return _object("v1", "Node", node, spec=spec, status=status)


def pod_object(node: str, index: int) -> dict[str, Any]:
    namespace, name = pod_name(node, index)
    conditions = [
        {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": _THEN}
        for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    ran = {
        "name": "main",
        "image": "registry.example.com/shop/service:1",
        "imageID": f"docker-pullable://registry.example.com/shop/service@sha256:{0:064d}",
        "containerID": f"docker://{index:064d}",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": _THEN}},
        "lastState": {},
    }
    ip = f"10.244.1.{index + 2}"
    status = {
        "phase": "Running",
        "qosClass": "Burstable",
        "startTime": _THEN,
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "hostIP": "192.0.2.1",
        "conditions": conditions,
        "containerStatuses": [ran],
    }
    return _object("v1", "Pod", name, namespace, spec=_pod_spec(node), status=status)


def _pod_spec(node: str) -> dict[str, Any]:
    probe = {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10}
    container = {
        "name": "main",
        "image": "registry.example.com/shop/service:1",
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": f"SETTING_{number}", "value": "some value of it"} for number in range(20)],
        "resources": {"limits": {"memory": "256Mi"}, "requests": {"cpu": "100m", "memory": "128Mi"}},
        "volumeMounts": [{"name": one, "mountPath": f"/etc/{one}"} for one in ("token", "settings")],
        "livenessProbe": probe,
        "readinessProbe": probe,
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
    }
    return {
        "nodeName": node,
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "terminationGracePeriodSeconds": 30,
        "securityContext": {},
        "containers": [container],
        "volumes": [
            {"name": "token", "secret": {"secretName": "shop-secrets", "defaultMode": 420}},
            {"name": "settings", "configMap": {"name": "shop-configmaps", "defaultMode": 420}},
        ],
    }


def _object(version: str, kind: str, name: str, namespace: str = "", **content: Any) -> dict[str, Any]:
    # Of every writer, the API server keeps which fields it set: about a third of a pod.
    owned: dict[str, Any] = {
        f"f:field-{number}": {".": {}, "f:value": {}} for number in range(30 if kind in {"Pod", "Node"} else 5)
    }
    fields = {
        "manager": "kubelet",
        "operation": "Update",
        "time": _THEN,
        "apiVersion": version,
        "fieldsType": "FieldsV1",
    }
    metadata = {
        "name": name,
        "uid": f"{kind.lower()}-{namespace}-{name}",
        "creationTimestamp": _THEN,
        **({"namespace": namespace} if namespace else {}),
        "labels": {"app": name, "team": namespace, "kubernetes.io/hostname": name},
        "managedFields": [{**fields, "fieldsV1": {"f:metadata": owned}}],
    }
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **content}
