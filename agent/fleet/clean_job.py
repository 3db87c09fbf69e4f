"""`kubectl nodeleak clean-job`: a Job like the DaemonSet, but for what a release needs."""

import argparse
import json
from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from threading import Event
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from agent.cli.output import DONE, warn, write
from agent.config import UsageError, option, settings_of
from agent.fleet.kubectl import Kubectl, KubectlError
from agent.fleet.nodes import LABELS, KubeObject, agent_container, container_state
from agent.fleet.session import Session, command_line
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
    """Print the Job, or run it with `--run`. Return the exit code. Raises UsageError."""
    session = Session(arguments)
    (target,) = session.targets()

    daemon_sets = session.objects("daemonsets")
    namespaces = {each["metadata"]["namespace"] for each in daemon_sets}
    # A pool may have a second one, with other limits. The first one has the settings of the fleet.
    daemon_sets.sort(key=lambda each: str(each["metadata"].get("name")))

    if not namespaces:
        raise UsageError(
            f"found no DaemonSet with the labels {LABELS}",
            "release with deploy/clean-one-node.yaml, whose first lines are the commands",
        )
    if len(namespaces) != 1:
        found = ", ".join(sorted(namespaces))
        raise UsageError(
            f"expected one DaemonSet with the labels {LABELS}, found: {found}",
            "choose one with --namespace",
        )

    job = clean_job(daemon_sets[0], target.node, arguments.rest, apply=arguments.apply)
    if arguments.run:
        return run_job(session.kubectl, job, arguments.timeout.total_seconds())

    apply = ["--apply"] if arguments.apply else []
    command = command_line(arguments, "clean-job", target.node, *apply, "--run")
    write(f"# To create it, wait for it and print its log: {command}\n")
    write(yaml.safe_dump(job, sort_keys=False))
    return DONE


def clean_job(
    daemon_set: KubeObject, node: str, options: Sequence[str], *, apply: bool
) -> dict[str, Any]:
    """Return the Job that runs `nodeleak clean` with these options on a node.

    Raises UsageError if it is not the agent's DaemonSet.
    """
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
    # The kubelet checks these. The chart's DaemonSet excludes the nodes of a pool.
    for chosen_nodes in ("affinity", "nodeSelector"):
        spec.pop(chosen_nodes, None)

    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "generateName": "nodeleak-clean-",
            "namespace": daemon_set["metadata"]["namespace"],
            # Copies, because YAML would write the same object as an anchor.
            "labels": dict(_LABELS),
        },
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": _DEADLINE,
            "ttlSecondsAfterFinished": _KEPT,
            "template": {"metadata": {"labels": dict(_LABELS)}, "spec": spec},
        },
    }


def _agent(containers: Sequence[KubeObject]) -> dict[str, Any]:
    """Return the agent's container alone: a sidecar never ends, and neither would the Job."""
    if not containers:
        raise LookupError("container")
    agent = agent_container(containers)
    return {key: value for key, value in agent.items() if key not in _ONLY_DAEMON}


def _settings(container: KubeObject, options: Sequence[str]) -> list[str]:
    """Return the options of the DaemonSet that `clean` has too, unless `options` sets them.

    Without them, guards may be weaker.
    """
    overridden = {text.partition("=")[0] for text in options}
    shared = {option(setting) for setting in settings_of("clean")} - overridden

    settings: list[str] = []
    for argument, following in pairwise([*(container.get("args") or ()), ""]):
        name, equals, _ = argument.partition("=")
        if name in shared:
            settings.append(argument)
            if not equals:
                settings.append(following)
    return settings


def _networks(container: KubeObject) -> list[str]:
    """Return the option for all networks, or none if the cluster names its networks.

    `envFrom` may name them, and an option could allow more than that.
    """
    variables = {variable["name"] for variable in container.get("env") or ()}
    is_option = any(text.startswith("--cleanup-network") for text in container["args"])
    if is_option or "NODELEAK_CLEANUP_NETWORK" in variables or container.get("envFrom"):
        return []
    return ["--cleanup-network=auto"]


def _mount_writable(spec: KubeObject, container: KubeObject) -> None:
    """Make the mounts of host-local's files writable in the spec."""
    volumes = {
        volume["name"]
        for volume in spec["volumes"]
        if volume.get("hostPath", {}).get("path") == _STORE
    }
    mounts = [mount for mount in container["volumeMounts"] if mount["name"] in volumes]
    if not mounts:
        raise UsageError(f"the DaemonSet mounts no hostPath {_STORE}")

    for mount in mounts:
        mount["readOnly"] = False


def run_job(kubectl: Kubectl, job: KubeObject, timeout: float) -> int:
    """Create the Job, wait for it, print its log, and return the exit code of its container.

    `timeout`: in seconds. Raises KubectlError.
    """
    namespace = f"--namespace={job['metadata']['namespace']}"
    created = kubectl.output(
        "create the Job", "create", "--filename=-", "--output=name", text=json.dumps(job)
    )
    name = created.strip().rpartition("/")[2]
    warn(f"created Job {name} in namespace {job['metadata']['namespace']}")

    container = job["spec"]["template"]["spec"]["containers"][0]["name"]
    try:
        pod, exit_code = _wait(kubectl, namespace, job=name, container=container, timeout=timeout)
    except (KubectlError, KeyboardInterrupt):
        warn(f"the Job may go on; to stop it: kubectl {namespace} delete job {name}")
        raise

    log = kubectl.output("read its log", "logs", pod, namespace, f"--container={container}")
    write("".join(f"{escape(line)}\n" for line in log.splitlines()))
    return exit_code


def _wait(
    kubectl: Kubectl, namespace: str, *, job: str, container: str, timeout: float
) -> tuple[str, int]:
    """Return the pod of the Job, and the exit code of its container. A sidecar may run on.

    `timeout`: in seconds. Raises KubectlError if the pod fails, or does not end in time.
    """
    pod = ""
    reason = ""
    shown = ""

    for _ in range(max(1, round(timeout / _INTERVAL))):
        for each in kubectl.items("pods", namespace, f"--selector=job-name={job}"):
            pod = each["metadata"]["name"]
            status = each.get("status") or {}
            state = container_state(status, container)
            if "terminated" in state:
                return pod, state["terminated"]["exitCode"]
            reason = _reason(state.get("waiting") or status)
            if status.get("phase") == "Failed":
                raise KubectlError(f"pod {pod} failed: {reason}")

            if reason not in {"", shown}:
                shown = reason
                warn(f"pod {pod} waits: {reason}")
        Event().wait(_INTERVAL)

    what_waits = f"pod {pod}" if pod else "it has no pod"
    event = _last_event(kubectl, namespace, pod or job)
    reasons = [text for text in (what_waits, reason, event) if text]
    raise KubectlError(f"Job {job} did not end within {timeout:g} s: {': '.join(reasons)}")


def _reason(status: KubeObject) -> str:
    """Return the reason and the message of a state, a pod or an Event; empty: it has none."""
    texts = (status.get("reason"), status.get("message"))
    return truncate(": ".join(text for text in texts if text))


def _last_event(kubectl: Kubectl, namespace: str, name: str) -> str:
    """Return the last Event about a pod or a Job, such as a volume that cannot be mounted."""
    try:
        selector = f"--field-selector=involvedObject.name={name}"
        events = kubectl.items("events", namespace, selector)
    except KubectlError:  # not everybody may list Events
        return ""
    last = max(events, key=lambda event: event.get("lastTimestamp") or "", default={})
    return _reason(last)
