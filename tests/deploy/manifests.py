"""The manifests of deploy/, as kubectl renders them."""

import re
import shutil
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, cast

import yaml  # type: ignore[import-untyped]

from tests.wire import needs, run

Object = dict[str, Any]

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
ALL: Final = ("base", *sorted(f"overlays/{path.name}" for path in (DEPLOY / "overlays").iterdir()))
COMPONENTS: Final = tuple(name for name in ALL if (DEPLOY / name / "component").exists())
AGENTS: Final = (
    "base",
    *COMPONENTS,
)  # Those that deploy the agent; the others add to what is deployed
BASE_RULES: Final = {
    *product([""], ["pods", "nodes"], ["list", "watch"]),
    *product([""], ["events"], ["create", "patch", "list"]),
}
BRAKE_RULES: Final = {*product([""], ["configmaps"], ["list", "watch"])}
"""Of the Role, for one ConfigMap."""
JOB: Final = "clean-one-node.yaml"
ONE_NODE: Final = "one-node.yaml"
FILES: Final = ("install.yaml", "install-cleanup.yaml", JOB, ONE_NODE)  # Applied without kustomize
_KUBECTL: Final = shutil.which("kubectl")  # The real one: a test may put another before it


@cache
def rendered(name: str) -> tuple[Object, ...]:
    """Return the objects of a kustomization or of a file."""
    if name.endswith(".yaml"):
        return _objects((DEPLOY / name).read_text())
    return render(DEPLOY / name)


def render(directory: Path) -> tuple[Object, ...]:
    needs(_KUBECTL is not None, "kubectl, to render deploy/")
    return _objects(run(str(_KUBECTL), "kustomize", str(directory)))


def _objects(text: str) -> tuple[Object, ...]:
    return tuple(cast("list[Object]", list(yaml.safe_load_all(text))))


@cache
def kubectl_has_components() -> bool:
    """Tell whether it is 1.21 or newer; before, a directory was a base, and could not be in `resources`."""
    needs(_KUBECTL is not None, "kubectl, to render deploy/")
    version = yaml.safe_load(run(str(_KUBECTL), "version", "--client", "-o", "yaml"))[
        "clientVersion"
    ]
    return (int(version["major"]), int(re.sub(r"\D.*", "", version["minor"]))) >= (1, 21)


def kustomization(directory: Path, **fields: object) -> Path:
    """Write a kustomization beside deploy/, as a user would have it; return its directory."""
    (directory / "deploy").symlink_to(DEPLOY)
    own = directory / "my-nodeleak"
    own.mkdir()
    (own / "kustomization.yaml").write_text(yaml.safe_dump(fields))
    return own


def of_kind(name: str, kind: str) -> list[Object]:
    return [document for document in rendered(name) if document["kind"] == kind]


def pod_spec(name: str) -> Object:
    """Return that of the DaemonSet, Job or Pod."""
    (owner,) = [
        document for document in rendered(name) if document["kind"] in {"DaemonSet", "Job", "Pod"}
    ]
    spec: Object = owner["spec"] if owner["kind"] == "Pod" else owner["spec"]["template"]["spec"]
    return spec


def container(name: str) -> Object:
    (only,) = pod_spec(name)["containers"]
    found: Object = only
    return found


def environment(name: str) -> dict[str, str]:
    """Return the agent's environment variables, with an example for the node's name."""
    given = {
        variable["name"]: variable.get("value", "worker-1") for variable in container(name)["env"]
    }
    return {key: value for key, value in given.items() if key.startswith("NODELEAK_")}


def mounts(name: str) -> dict[str, Object]:
    """Return the mount of each path of the node, with the type of its volume."""
    volumes = {
        volume["name"]: volume["hostPath"]
        for volume in pod_spec(name)["volumes"]
        if "hostPath" in volume
    }
    mounted = container(name)["volumeMounts"]
    found = ((mount, volumes[mount["name"]]) for mount in mounted if mount["name"] in volumes)
    return {volume["path"]: {**mount, **volume} for mount, volume in found}


def writable(name: str) -> set[str]:
    return {path for path, mount in mounts(name).items() if not mount.get("readOnly")}


def rules(name: str, kind: str = "ClusterRole") -> set[tuple[str, str, str]]:
    """Return what the roles allow: group, resource and verb."""
    return {
        (group, resource, verb)
        for role in of_kind(name, kind)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
