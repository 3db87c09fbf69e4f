"""The deployed agent: image, manifests, pod and resource use."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from types import MappingProxyType
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from tests.processes import environment

from .node import ROOT, Cluster, docker, eventually, run
from .nodeleak import Cleaned, Metrics, Report, last_report

IMAGE: Final = "registry.invalid/nodeleak"
TAGS: Final = ("e2e", "e2e-next")
MODERN_TAG: Final = (
    "e2e-modern"  # Not one of those of the tests on Kubernetes 1.20, which may run at the same time
)
DOCKER: Final = ROOT / "deploy/overlays/docker/component/daemonset.yaml"
_API_SERVER: Final = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
_PODS: Final = "app.kubernetes.io/name=nodeleak"
_JOBS: Final = "app.kubernetes.io/name=nodeleak-clean"


def build_image(*tags: str) -> None:
    """Build the image. `tags`: default: two, to test an upgrade."""
    own = {name: value for name, value in os.environ.items() if "CLUSTER" in name}
    ended = ("setpriv", "--pdeathsig=TERM", "--")  # with this process, also if it is killed
    run(*ended, ROOT / "hack/image", *(tags or TAGS), env=environment(**own), seconds=1800)


class Deployment:
    """The agent on one node of this cluster: at most one pod."""

    def __init__(
        self,
        cluster: Cluster,
        directory: Path,
        namespace: str = "kube-system",
        api_server: Mapping[str, str] = _API_SERVER,
        tag: str = TAGS[0],
        inside: Sequence[str] = (),
        *,
        docker: bool = False,
    ) -> None:
        """`api_server`: where the agent finds it, if the node does not tell its pods. `docker`: with its component.

        `inside`: command prefix: run on another node than this machine.
        """
        self._node, self._directory, self._namespace, self._api_server = (
            cluster.node,
            directory,
            namespace,
            api_server,
        )
        self._inside, self._tag, self._docker = inside, tag, docker
        self._program = (cluster.program, "--kubeconfig", cluster.admin)

    def kubectl(self, *arguments: str, codes: Sequence[int] = (0,), text: str = "") -> str:
        """Run kubectl as administrator, in the agent's namespace."""
        return run(*self._program, "-n", self._namespace, *arguments, codes=codes, text=text).stdout

    def get(self, path: str) -> str:
        """Request a path of the agent, which listens on the node."""
        return run(
            *self._inside, "curl", "-sf", "--noproxy", "*", f"http://127.0.0.1:9747{path}"
        ).stdout

    def metrics(self) -> Metrics:
        return Metrics(self.get("/metrics"))

    def sources_up(self) -> set[float]:
        return set(self.metrics().by("source", "source_up").values())

    def report(self) -> Report:
        return last_report(self.get)

    def scan(self, *options: str) -> Report:
        """Scan in the pod."""
        return Report(0, self.run_json("scan", *options))

    def clean(self, *options: str, codes: Sequence[int] = (0,)) -> Cleaned:
        """Clean in the pod."""
        return Cleaned(0, self.run_json("clean", *options, codes=codes))

    def released(self) -> set[tuple[str, str]]:
        """Return each address in the journal with who has released it."""
        entries = self.run_json("journal")["entries"]
        return {(ip, entry["by"]) for entry in entries for ip in entry["addresses"]}

    def apply(self, name: str = "base", tag: str | None = None, **settings: str) -> dict[str, Any]:
        """Apply a kustomization with the changes that this node needs; return the pod when it is ready."""
        self.kubectl("apply", "-k", str(self.written(name, tag or self._tag, settings)))
        self.kubectl("rollout", "status", "daemonset/nodeleak", "--timeout=150s")
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
        self.kubectl(
            "delete", "-k", str(self.written("overlays/node-condition")), "--ignore-not-found"
        )

    def pod(self) -> dict[str, Any]:
        """Return the ready pod; another one may be terminating."""

        def check() -> dict[str, Any]:
            found = json.loads(self.kubectl("get", "pods", "-l", _PODS, "-o", "json"))["items"]
            (pod,) = [one for one in found if "deletionTimestamp" not in one["metadata"]]
            conditions = {
                found["type"]: found["status"] for found in pod["status"].get("conditions", ())
            }
            assert conditions.get("Ready") == "True"
            return dict(pod)

        return eventually(check)

    def restarts(self) -> int:
        (status,) = self.pod()["status"]["containerStatuses"]
        return int(status["restartCount"])

    def execute(self, *arguments: str, codes: Sequence[int] = (0,)) -> "CompletedProcess[str]":
        """Run a command in the pod with kubectl exec."""
        pod = self.pod()["metadata"]["name"]
        return run(
            *self._program, "-n", self._namespace, "exec", pod, "--", *arguments, codes=codes
        )

    def run_json(self, *arguments: str, codes: Sequence[int] = (0,)) -> dict[str, Any]:
        """Run a command of the agent in the pod and return its JSON output."""
        document: dict[str, Any] = json.loads(
            self.execute("nodeleak", *arguments, "-o", "json", codes=codes).stdout
        )
        return document

    def process(self) -> int:
        """Return the pid of the agent in the node's process table."""
        found = docker("ps", "-q", "--filter=label=io.kubernetes.container.name=nodeleak").split()
        assert len(found) == 1
        return int(docker("inspect", "--format={{.State.Pid}}", *found))

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
        name = self.kubectl("create", "-f", "-", "-o", "name", text=json.dumps(job)).strip()
        try:
            ended = ("get", name, "-o", 'jsonpath={.status.conditions[?(@.status=="True")].type}')
            eventually(lambda: self.kubectl(*ended) != "", equal=True)
            return self.kubectl("logs", name)
        finally:
            self.kubectl("delete", name)
            eventually(lambda: self.kubectl("get", "pods", "-l", _JOBS, "-o", "name"), equal="")

    def written(
        self, name: str, tag: str = "", settings: Mapping[str, str] = MappingProxyType({})
    ) -> Path:
        """Write the kustomization that `apply` applies; return its directory."""
        container = {
            "name": "nodeleak",
            "imagePullPolicy": "Never",
            "env": self._variables(settings),
        }
        # The nodes of the other profiles share a control plane.
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
        return [
            {"name": key, "value": value} for key, value in {**self._api_server, **settings}.items()
        ]
