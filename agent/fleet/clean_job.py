"""`kubectl nodeleak clean-job`: a Job that cleans one node: as the DaemonSet, except for what a release needs."""

import argparse
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from itertools import pairwise
from threading import Event
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from agent.cli.output import DONE, warn, write
from agent.config import UsageError, option, settings_of
from agent.fleet.kubectl import Kubectl, KubectlError
from agent.fleet.nodes import LABELS
from agent.fleet.session import Session, cluster_options
from agent.model.text import escape, truncate

_STORE: Final = "/var/lib/cni"
_DEADLINE: Final = 600
"""Seconds. A Job must not begin hours later, on a node that was away."""
_KEPT: Final = 86400
"""Seconds until Kubernetes 1.21 and newer delete the Job."""
_INTERVAL: Final = 1.0
"""Seconds between two looks at the pod."""
_ONLY_DAEMON: Final = ("livenessProbe", "readinessProbe", "startupProbe", "ports", "lifecycle")
"""A probe would ask the daemon's port, which the DaemonSet's pod on the node has."""
_LABELS: Final = {
    "app.kubernetes.io/name": "nodeleak-clean",
    "app.kubernetes.io/component": "cleanup",
}
"""What selects the agent's pods does not select this one."""


def print_or_run_job(arguments: argparse.Namespace) -> int:
    session = Session(arguments)
    (target,) = session.targets(arguments.nodes)
    found = session.kubectl.items("daemonsets", *session.agents_in, f"--selector={LABELS}")
    if len(found) != 1:
        names = ", ".join(daemon_set["metadata"]["namespace"] for daemon_set in found) or "none"
        hint = "choose one with --namespace"
        raise UsageError(f"expected one DaemonSet with the labels {LABELS}, found: {names}", hint)
    job = clean_job(found[0], target.node, arguments.rest, apply=arguments.apply)
    if arguments.run:
        return run_job(session.kubectl, job, arguments.timeout.total_seconds())
    apply, rest = (
        ["--apply"] if arguments.apply else [],
        ["--", *arguments.rest] if arguments.rest else [],
    )
    again = shlex.join(
        ["clean-job", target.node, *apply, "--run", *cluster_options(arguments), *rest]
    )
    write(f"# To create it, wait for it and print its log: kubectl nodeleak {again}\n")
    write(yaml.safe_dump(job, sort_keys=False))
    return DONE


def clean_job(
    daemon_set: Mapping[str, Any], node: str, options: Sequence[str], *, apply: bool
) -> dict[str, Any]:
    """Return the Job. `options`: of `nodeleak clean`. Raises UsageError if it is not the agent's DaemonSet."""
    try:
        spec = deepcopy(daemon_set["spec"]["template"]["spec"])
        container = _agent(spec["containers"])
        container["args"] = ["clean", *_settings(container, options), *options]
        if apply:
            container["args"] += ["--apply", *_networks(container)]
            _mount_writable(spec, container)
    except (LookupError, TypeError) as error:
        raise UsageError(f"the DaemonSet has no {error}") from error
    spec |= {"containers": [container], "nodeName": node, "restartPolicy": "Never"}
    spec.pop("priorityClassName", None)  # it evicts no other pod
    limits = {
        "backoffLimit": 0,
        "activeDeadlineSeconds": _DEADLINE,
        "ttlSecondsAfterFinished": _KEPT,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": "nodeleak-clean-",
            "namespace": daemon_set["metadata"]["namespace"],
            "labels": dict(
                _LABELS
            ),  # not the same object twice, which YAML would write as an anchor
        },
        "spec": {**limits, "template": {"metadata": {"labels": dict(_LABELS)}, "spec": spec}},
    }


def _agent(containers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the agent's container alone: a sidecar never ends, and neither would the Job."""
    named = [
        container for container in containers if container["name"] == "nodeleak"
    ] or containers[:1]
    if not named:
        raise LookupError("container")
    return {key: value for key, value in named[0].items() if key not in _ONLY_DAEMON}


def _settings(container: Mapping[str, Any], options: Sequence[str]) -> list[str]:
    """Return the options of `run` that `clean` has too, and that are not given: without them guards may be weaker."""
    shared = {*map(option, settings_of("clean"))} - {given.partition("=")[0] for given in options}
    kept: list[str] = []
    for argument, following in pairwise([*(container.get("args") or ()), ""]):
        name, equals, _ = argument.partition("=")
        if name in shared:
            kept += [argument] if equals else [argument, following]
    return kept


def _networks(container: Mapping[str, Any]) -> list[str]:
    """Name the networks if the cluster does not; `envFrom` may, and an option could allow more than that."""
    variables = {variable["name"] for variable in container.get("env") or ()}
    named = any(argument.startswith("--cleanup-network") for argument in container["args"])
    given = named or "NODELEAK_CLEANUP_NETWORK" in variables or container.get("envFrom")
    return [] if given else ["--cleanup-network=auto"]


def _mount_writable(spec: Mapping[str, Any], container: Mapping[str, Any]) -> None:
    paths = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
    found = [mount for mount in container["volumeMounts"] if paths.get(mount["name"]) == _STORE]
    if not found:
        raise UsageError(f"the DaemonSet mounts no hostPath {_STORE}")
    for mount in found:
        mount["readOnly"] = False


def run_job(kubectl: Kubectl, job: Mapping[str, Any], seconds: float) -> int:
    namespace = job["metadata"]["namespace"]
    created = kubectl.output(
        "create the Job", "create", "--filename=-", "--output=name", text=json.dumps(job)
    )
    name = created.strip().rpartition("/")[2]
    warn(f"created Job {name} in namespace {namespace}")
    (container,) = (
        container["name"] for container in job["spec"]["template"]["spec"]["containers"]
    )
    try:
        pod, exit_code = _wait(kubectl, namespace, name, container, seconds)
    except (KubectlError, KeyboardInterrupt):
        warn(f"the Job may go on; to stop it: kubectl --namespace={namespace} delete job {name}")
        raise
    log = kubectl.output(
        "read its log", "logs", pod, f"--namespace={namespace}", f"--container={container}"
    )
    write("".join(f"{escape(line)}\n" for line in log.splitlines()))
    return exit_code


def _wait(
    kubectl: Kubectl, namespace: str, job: str, container: str, seconds: float
) -> tuple[str, int]:
    """Return the pod of the Job, and the exit code of its container. A sidecar may run on."""
    shown, pod, why = "", "", ""
    for _ in range(max(1, round(seconds / _INTERVAL))):
        for found in kubectl.items(
            "pods", f"--namespace={namespace}", f"--selector=job-name={job}"
        ):
            pod, status = found["metadata"]["name"], found.get("status") or {}
            state = _state(status, container)
            if "terminated" in state:
                return pod, state["terminated"]["exitCode"]
            why = _why(state.get("waiting") or status)
            if status.get("phase") == "Failed":
                raise KubectlError(f"pod {pod} failed: {why}")
            if why not in {"", shown}:
                shown = why
                warn(f"pod {pod} waits: {why}")
        Event().wait(_INTERVAL)
    event = _last_event(kubectl, namespace, pod or job)
    reasons = ": ".join(filter(None, [f"pod {pod}" if pod else "it has no pod", why, event]))
    raise KubectlError(f"Job {job} did not end within {seconds:g} s: {reasons}")


def _state(status: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    states = (
        found["state"]
        for found in status.get("containerStatuses") or ()
        if found["name"] == container
    )
    return next(states, {})


def _why(status: Mapping[str, Any]) -> str:
    return truncate(": ".join(filter(None, [status.get("reason"), status.get("message")])))


def _last_event(kubectl: Kubectl, namespace: str, name: str) -> str:
    """Say what the cluster reported last about a pod or a Job, such as a volume that cannot be mounted."""
    with suppress(KubectlError):  # not everybody may list Events
        selector = f"--field-selector=involvedObject.name={name}"
        listed = kubectl.items("events", f"--namespace={namespace}", selector)
        events = sorted(listed, key=lambda event: event.get("lastTimestamp") or "")
        return _why(events[-1]) if events else ""
    return ""
