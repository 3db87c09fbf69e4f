"""A Job that cleans one node, made from the DaemonSet in the cluster. Pure.

The image, the mounts, the account and the settings are the cluster's own. Only what a release needs is different.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any, Final

_STORE: Final = "/var/lib/cni"
_DEADLINE: Final = 600
"""Seconds. A Job must not begin hours later, on a node that was away."""
_KEPT: Final = 86400
"""Seconds until Kubernetes 1.21 and newer delete the Job."""
_ONLY_DAEMON: Final = ("livenessProbe", "readinessProbe", "startupProbe", "ports", "lifecycle")
"""A probe would ask the daemon's port, which the DaemonSet's pod on the node has."""
_LABELS: Final = {"app.kubernetes.io/name": "nodeleak-clean", "app.kubernetes.io/component": "cleanup"}
"""What selects the agent's pods does not select this one."""


def clean_job(
    daemon_set: Mapping[str, Any], node: str, options: Sequence[str], known: Collection[str], *, apply: bool
) -> dict[str, Any]:
    """Return the Job. `options`: of `nodeleak clean`. Raises ValueError if it is not the agent's DaemonSet.

    `known`: the names of all settings of `clean`, such as `--settle`.
    """
    try:
        spec = deepcopy(daemon_set["spec"]["template"]["spec"])
        container = _agent(spec["containers"])
        namespace = daemon_set["metadata"]["namespace"]
        container["args"] = ["clean", *_settings(container, options, known), *options]
        if apply:
            container["args"] += ["--apply", *_networks(container, options)]
            _mount_writable(spec, container)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the DaemonSet has no {error}") from error
    spec |= {"containers": [container], "nodeName": node, "restartPolicy": "Never"}
    spec.pop("priorityClassName", None)  # it evicts no other pod
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": "nodeleak-clean-", "namespace": namespace, "labels": _LABELS},
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": _DEADLINE,
            "ttlSecondsAfterFinished": _KEPT,
            "template": {"metadata": {"labels": _LABELS}, "spec": spec},
        },
    }


def _agent(containers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the agent's container alone: a sidecar never ends, and neither would the Job."""
    named = [one for one in containers if one["name"] == "nodeleak"] or containers[:1]
    if not named:
        raise KeyError("container")
    return {key: value for key, value in named[0].items() if key not in _ONLY_DAEMON}


def _settings(container: Mapping[str, Any], options: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the options of `run` that `clean` has too, and that are not given: without them guards may be weaker."""
    given = {one.partition("=")[0] for one in options}
    shared = set(known) - given
    kept: list[str] = []
    for argument, following in pairwise([*(container.get("args") or ()), ""]):
        name, equals, _ = argument.partition("=")
        if name in shared:
            kept += [argument] if equals else [argument, following]
    return kept


def _networks(container: Mapping[str, Any], options: Sequence[str]) -> list[str]:
    """Without the overlay cleanup-exec, the DaemonSet does not say which networks may be cleaned.

    What `envFrom` names cannot be seen here, and may say it: then an option would allow more than the cluster does.
    """
    names = {one["name"] for one in container.get("env") or ()}
    named = any(one.startswith("--cleanup-network") for one in (*container["args"], *options))
    given = named or "NODELEAK_CLEANUP_NETWORK" in names or container.get("envFrom")
    return [] if given else ["--cleanup-network=auto"]


def _mount_writable(spec: Mapping[str, Any], container: Mapping[str, Any]) -> None:
    """Mount host-local's directory writable, and nothing else."""
    paths = {one["name"]: one.get("hostPath", {}).get("path") for one in spec["volumes"]}
    found = [one for one in container["volumeMounts"] if paths.get(one["name"]) == _STORE]
    if not found:
        raise ValueError(f"the DaemonSet mounts no hostPath {_STORE}")
    for mount in found:
        mount["readOnly"] = False
