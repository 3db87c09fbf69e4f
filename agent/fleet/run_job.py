"""`kubectl nodeleak clean-job --run`: create the Job, wait until its container has ended, and print its log."""

import json
from collections.abc import Mapping
from contextlib import suppress
from threading import Event
from typing import Any, Final

from agent.cli.output import warn, write
from agent.fleet.kubectl import Kubectl, KubectlError
from agent.model.text import escape, truncate

_INTERVAL: Final = 1.0
"""Seconds between two looks at the pod."""


def run_job(kubectl: Kubectl, job: Mapping[str, Any], seconds: float) -> int:
    """Return the exit code of the command in the Job. Raises KubectlError if it does not end in time."""
    namespace = job["metadata"]["namespace"]
    created = kubectl.output("create the Job", "create", "--filename=-", "--output=name", text=json.dumps(job))
    name = created.strip().rpartition("/")[2]
    warn(f"created Job {name} in namespace {namespace}")
    (container,) = (container["name"] for container in job["spec"]["template"]["spec"]["containers"])
    try:
        pod, exit_code = _wait(kubectl, namespace, name, container, seconds)
    except (KubectlError, KeyboardInterrupt):
        warn(f"the Job may go on; to stop it: kubectl --namespace={namespace} delete job {name}")
        raise
    log = kubectl.output("read its log", "logs", pod, f"--namespace={namespace}", f"--container={container}")
    write("".join(f"{escape(line)}\n" for line in log.splitlines()))
    return exit_code


def _wait(kubectl: Kubectl, namespace: str, job: str, container: str, seconds: float) -> tuple[str, int]:
    """Return the pod of the Job, and the exit code of its container. A sidecar may run on."""
    shown, pod, why = "", "", ""
    for _ in range(max(1, round(seconds / _INTERVAL))):
        selector = f"--selector=job-name={job}"
        listed = kubectl.get("pods", f"--namespace={namespace}", selector, "--output=json")
        for found in json.loads(listed)["items"]:
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
    states = (found["state"] for found in status.get("containerStatuses") or () if found["name"] == container)
    return next(states, {})


def _why(status: Mapping[str, Any]) -> str:
    return truncate(": ".join(filter(None, [status.get("reason"), status.get("message")])))


def _last_event(kubectl: Kubectl, namespace: str, name: str) -> str:
    """Say what the cluster reported last about a pod or a Job, such as a volume that cannot be mounted."""
    with suppress(KubectlError):  # not everybody may list Events
        selector = f"--field-selector=involvedObject.name={name}"
        listed = kubectl.get("events", f"--namespace={namespace}", selector, "--output=json")
        events = sorted(json.loads(listed)["items"], key=lambda event: event.get("lastTimestamp") or "")
        return _why(events[-1]) if events else ""
    return ""
