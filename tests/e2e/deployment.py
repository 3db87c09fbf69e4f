"""The deployed agent: image, manifests, pod and resource use."""

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from subprocess import CompletedProcess
from types import MappingProxyType
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from tests.processes import environment

from .agent import Metrics
from .node import Cluster, docker, eventually, run

ROOT: Final = Path(__file__).parents[2]
IMAGE: Final = "registry.invalid/nodeleak"
TAGS: Final = ("e2e", "e2e-next")
MODERN_TAG: Final = "e2e-modern"
"""Not one of those of the tests on Kubernetes 1.20, which may run at the same time."""
DOCKER: Final = ROOT / "deploy/overlays/docker/component/daemonset.yaml"
_API_SERVER: Final = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
_PODS: Final = "app.kubernetes.io/name=nodeleak"
_JOBS: Final = "app.kubernetes.io/name=nodeleak-clean"


def build_image(*tags: str) -> None:
    """Build the image. `tags`: default: two, to test an upgrade."""
    own = {name: value for name, value in os.environ.items() if "CLUSTER" in name}
    run(ROOT / "hack/image", *(tags or TAGS), env=environment(**own), seconds=600)


def get(path: str) -> str:
    """Request a path of the agent, whose port is one of this machine."""
    return run("curl", "--silent", "--fail", "--noproxy", "*", f"http://127.0.0.1:9747{path}").stdout


def metrics() -> Metrics:
    return Metrics(get("/metrics"))


class Deployment:
    """The agent on one node of this cluster: at most one pod."""

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        kubectl: str | Path = "kubectl",
        namespace: str = "kube-system",
        api_server: Mapping[str, str] = _API_SERVER,
        tag: str = TAGS[0],
        *,
        docker: bool = False,
    ) -> None:
        """`api_server`: where the agent finds it, if the node does not tell its pods. `docker`: with its component."""
        self._node, self._directory, self._namespace, self._api_server = cluster.node, directory, namespace, api_server
        self._tag, self._docker, self._program = tag, docker, (kubectl, "--kubeconfig", cluster.admin)

    def kubectl(self, *arguments: str, codes: Sequence[int] = (0,), text: str = "") -> str:
        """Run kubectl as administrator, in the agent's namespace."""
        return run(*self._program, "-n", self._namespace, *arguments, codes=codes, text=text).stdout

    def apply(self, name: str = "base", tag: str | None = None, **settings: str) -> dict[str, Any]:
        """Apply a kustomization with the changes that this node needs; return the pod when it is ready."""
        self.kubectl("apply", "-k", str(self.written(name, tag or self._tag, settings)))
        self._wait_for_rollout()
        return self.pod()

    def present(self) -> None:
        """Deploy it unless it is deployed."""
        if not self.kubectl("get", "daemonset", "nodeleak", "--ignore-not-found"):
            self.apply("base")

    def stop(self) -> None:
        """Delete the DaemonSet; its pod may still be terminating."""
        self.kubectl("delete", "daemonset", "nodeleak", "--ignore-not-found")

    def delete(self) -> None:
        # Its pod first: a kubelet waits two minutes for the secret of a service account that went before its pod.
        self.stop()
        self.kubectl("wait", "pods", "-l", _PODS, "--for=delete", "--timeout=150s")
        # The base, and the rights that tests add to it.
        self.kubectl("delete", "-k", str(self.written("overlays/node-condition")), "--ignore-not-found")

    def pod(self) -> dict[str, Any]:
        """Return the ready pod; another one may be terminating."""

        def check() -> dict[str, Any]:
            found = json.loads(self.kubectl("get", "pods", "-l", _PODS, "-o", "json"))["items"]
            (pod,) = [one for one in found if "deletionTimestamp" not in one["metadata"]]
            assert since(pod, "Ready") is not None
            return dict(pod)

        return eventually(check, 60)

    def restarts(self) -> int:
        (status,) = self.pod()["status"]["containerStatuses"]
        return int(status["restartCount"])

    def execute(self, *arguments: str, codes: Sequence[int] = (0,)) -> "CompletedProcess[str]":
        """Run a command in the pod with kubectl exec."""
        pod = self.pod()["metadata"]["name"]
        return run(*self._program, "-n", self._namespace, "exec", pod, "--", *arguments, codes=codes)

    def run_json(self, *arguments: str, codes: Sequence[int] = (0,)) -> dict[str, Any]:
        """Run a command of the agent in the pod and return its JSON output."""
        document: dict[str, Any] = json.loads(self.execute("nodeleak", *arguments, "-o", "json", codes=codes).stdout)
        return document

    def process(self) -> int:
        """Return the pid of the agent in the node's process table."""
        found = docker("ps", "-q", "--filter=label=io.kubernetes.container.name=nodeleak").split()
        assert len(found) == 1
        return int(docker("inspect", "--format={{.State.Pid}}", *found))

    def memory(self) -> "MemoryCgroup":
        return MemoryCgroup.of(self.process())

    def clean_once(self, mode: str = "--apply", **settings: str) -> str:
        """Run the Job of deploy/clean-one-node.yaml on this node to its end; return what it printed."""
        text = (ROOT / "deploy/clean-one-node.yaml").read_text()
        job = yaml.safe_load(text.replace("NODE_NAME", self._node).replace("--apply", mode))
        (container,) = job["spec"]["template"]["spec"]["containers"]
        container |= {"image": f"{IMAGE}:{self._tag}", "imagePullPolicy": "Never"}
        container["env"] += self._variables(settings)
        if self._docker:  # what the page says to add
            spec = yaml.safe_load(DOCKER.read_text())["spec"]["template"]["spec"]
            container["volumeMounts"] += spec["containers"][0]["volumeMounts"]
            job["spec"]["template"]["spec"]["volumes"] += spec["volumes"]
        return self.run_job(json.dumps(job))

    def run_job(self, manifest: str) -> str:
        """Run a Job that cleans to its end; return what it printed."""
        job = self.kubectl("create", "-f", "-", "-o", "name", text=manifest).strip()
        try:

            def ended() -> None:
                status = json.loads(self.kubectl("get", job, "-o", "json"))["status"]
                assert {one["type"] for one in status.get("conditions", ()) if one["status"] == "True"}

            eventually(ended, 90)
            return self.kubectl("logs", job)
        finally:
            self.kubectl("delete", job)
            eventually(self._no_pods_of_jobs, 60)

    def _no_pods_of_jobs(self) -> None:
        assert self.kubectl("get", "pods", "-l", _JOBS, "-o", "name") == ""

    def written(self, name: str, tag: str = "", settings: Mapping[str, str] = MappingProxyType({})) -> Path:
        """Write the kustomization that `apply` applies; return its directory."""
        container = {"name": "nodeleak", "imagePullPolicy": "Never", "env": self._variables(settings)}
        # Another node of the cluster is on the same machine, where the agent's port is taken.
        node = {"kubernetes.io/hostname": self._node}
        patch = {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "nodeleak", "namespace": "kube-system"},
            "spec": {"template": {"spec": {"nodeSelector": node, "containers": [container]}}},
        }
        kustomization = {
            "bases": [os.path.relpath(ROOT / "deploy" / name, self._directory)],
            # kubectl 1.20 knows no components, and reads no file outside of the directory.
            "patchesStrategicMerge": ["here.yaml", *(["docker.yaml"] if self._docker else [])],
            "images": [{"name": IMAGE, "newTag": tag or self._tag}],
            "namespace": self._namespace,
        }
        (self._directory / "here.yaml").write_text(json.dumps(patch))
        (self._directory / "docker.yaml").write_text(DOCKER.read_text())
        (self._directory / "kustomization.yaml").write_text(json.dumps(kustomization))
        return self._directory

    def _variables(self, settings: Mapping[str, str]) -> list[dict[str, str]]:
        """Return settings as environment variables of a container."""
        return [{"name": key, "value": value} for key, value in {**self._api_server, **settings}.items()]

    def _wait_for_rollout(self) -> None:
        self.kubectl("rollout", "status", "daemonset/nodeleak", "--timeout=150s")


def since(pod: dict[str, Any], condition: str) -> datetime | None:
    """Return since when a condition of a pod is true; None if it is not."""
    true = [one for one in pod["status"].get("conditions", ()) if (one["type"], one["status"]) == (condition, "True")]
    return datetime.fromisoformat(true[0]["lastTransitionTime"]) if true else None


class MemoryCgroup:
    """The memory cgroup of a container, in bytes."""

    def __init__(self, now: int, peak: int, limit: int) -> None:
        self.now, self.peak, self.limit = now, peak, limit

    @classmethod
    def of(cls, pid: int) -> "MemoryCgroup":
        """Read the cgroup of a process, of either version."""
        groups = [line.split(":", 2) for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines()]
        of_version_1 = [path for _, controllers, path in groups if "memory" in controllers.split(",")]
        if of_version_1:
            directory = Path("/sys/fs/cgroup/memory") / of_version_1[0].lstrip("/")
            names = ("memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes")
        else:
            directory = Path("/sys/fs/cgroup") / groups[0][2].lstrip("/")
            names = ("memory.current", "memory.peak", "memory.max")
        return cls(*(int((directory / name).read_text()) for name in names))
