"""`kubectl nodeleak brake`: stops every release in the cluster, by one ConfigMap, and ends that."""

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from agent.cli.output import DONE, FOUND, warn, write
from agent.config import OFF, UsageError, brake, option, variable
from agent.fleet.kubectl import Kubectl
from agent.fleet.nodes import KubeObject, agent_container
from agent.fleet.session import Session
from agent.model.brake import MAX_AGE_SECONDS, NAME
from agent.model.text import count_of, escape, quote, truncate

_LABELS: Final = {"app.kubernetes.io/name": "nodeleak", "app.kubernetes.io/component": "brake"}
"""What selects the agent's pods does not select it."""

_MAX_REASON: Final = 200


class _Brake(NamedTuple):
    """The object that the agents read."""

    namespace: str
    name: str

    @property
    def commands(self) -> str:
        """How to set and end it without this program."""
        where = f"kubectl --namespace={self.namespace}"
        return (
            f"{where} create configmap {self.name} --from-literal=reason='…' / "
            f"{where} delete configmap {self.name}"
        )


def show_or_set_brake(arguments: argparse.Namespace) -> int:
    """Print whether the brake is on, set it, or end it; return the exit code."""
    if arguments.state == "on" and not (arguments.reason or "").strip():
        raise UsageError("brake on needs --reason: others have to know when it may end")
    if arguments.state != "on" and arguments.reason is not None:
        raise UsageError("--reason belongs to brake on")

    session = Session(arguments)
    daemon_sets = session.objects("daemonsets")
    chosen = _chosen(daemon_sets)

    match arguments.state:
        case "on":
            done = _set(session.kubectl, chosen, arguments.reason)
            warn(*_not_updated(daemon_sets))
            return done
        case "off":
            return _end(session.kubectl, chosen)
        case _:
            return _show(session.kubectl, chosen)


def _chosen(daemon_sets: Iterable[KubeObject]) -> _Brake:
    """Return the one brake that every DaemonSet of the agent reads. Raises UsageError."""
    hint = "choose with --namespace, or use kubectl: docs/kubectl.md#the-brake"
    brakes: dict[_Brake, None] = {}
    for daemon_set in daemon_sets:
        found = _brake_of(daemon_set)
        if found is None:
            name = f"{daemon_set['metadata']['namespace']}/{daemon_set['metadata']['name']}"
            text = f"the DaemonSet {name} reads no brake: set {variable('brake')}={NAME} in it"
            raise UsageError(text, hint)
        brakes[found] = None

    if len(brakes) != 1:
        names = ", ".join(f"{each.namespace}/{each.name}" for each in brakes) or "none"
        raise UsageError(f"expected one brake of the agents, found: {names}", hint)
    return next(iter(brakes))


def _brake_of(daemon_set: KubeObject) -> _Brake | None:
    """Return what the agents of a DaemonSet read; None: no brake, or it cannot be seen here."""
    container = agent_container(daemon_set["spec"]["template"]["spec"]["containers"])
    setting = ""
    for entry in container.get("env") or ():
        if entry["name"] == variable("brake"):
            setting = entry.get("value") or ""
    for argument, following in pairwise([*(container.get("args") or ()), ""]):
        name, equals, text = argument.partition("=")
        if name == option("brake"):
            setting = text if equals else following

    try:
        is_set = bool(setting) and brake(setting) != OFF
    except ValueError:
        is_set = False
    if not is_set:
        return None
    namespace, _, name = setting.rpartition("/")
    return _Brake(namespace or daemon_set["metadata"]["namespace"], name)


def _not_updated(daemon_sets: Iterable[KubeObject]) -> Iterator[str]:
    """Yield which DaemonSets have pods of an earlier template: it may have named no brake."""
    for daemon_set in daemon_sets:
        metadata = daemon_set["metadata"]
        status = daemon_set.get("status") or {}
        pods = status.get("desiredNumberScheduled") or 0
        updated = status.get("updatedNumberScheduled") or 0
        # Until the controller has seen the newest template, it counts the pods of an earlier one.
        if status.get("observedGeneration") != metadata.get("generation"):
            updated = 0

        if pods > updated:
            yield (
                f"the DaemonSet {metadata['namespace']}/{metadata['name']} is being rolled out: "
                f"{count_of(pods - updated, 'pod')} may have earlier settings, and read no brake "
                "or another one"
            )


def _set(kubectl: Kubectl, chosen: _Brake, reason: str) -> int:
    """Make the ConfigMap, or change the reason of one that exists."""
    document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": chosen.name, "namespace": chosen.namespace, "labels": _LABELS},
        "data": {"reason": truncate(reason, _MAX_REASON)},
    }
    text = json.dumps(document)

    kubectl.output("set the brake", "apply", "--filename=-", "--output=name", text=text)
    write(
        f"The brake {chosen.namespace}/{chosen.name} is on. No agent begins a release more than "
        f"{MAX_AGE_SECONDS:g} s from now; one that has begun finishes.\n"
        "To see what the agents say: kubectl nodeleak status\n"
    )
    return DONE


def _end(kubectl: Kubectl, chosen: _Brake) -> int:
    namespace = f"--namespace={chosen.namespace}"
    arguments = ("configmap", chosen.name, namespace, "--ignore-not-found", "--output=name")
    deleted = kubectl.output("end the brake", "delete", *arguments)
    before = "" if deleted.strip() else ", and was before"
    write(f"The brake {chosen.namespace}/{chosen.name} is off{before}.\n")
    return DONE


def _show(kubectl: Kubectl, chosen: _Brake) -> int:
    namespace = f"--namespace={chosen.namespace}"
    arguments = ("configmaps", chosen.name, namespace, "--ignore-not-found", "--output=json")
    found = kubectl.output("read the brake", "get", *arguments).strip()
    if not found:
        write(f"The brake {chosen.namespace}/{chosen.name} is off.\n")
        warn(f"to set and end it with kubectl alone: {chosen.commands}")
        return DONE

    item = json.loads(found)
    since = item["metadata"].get("creationTimestamp")
    state = f"has been on since {escape(truncate(since))}" if since else "is on"
    reason = truncate((item.get("data") or {}).get("reason") or "", _MAX_REASON)
    because = quote(reason) if reason else "no reason was given"
    write(
        f"The brake {chosen.namespace}/{chosen.name} {state}: {because}\n"
        "Nothing is released. To end it: kubectl nodeleak brake off\n"
    )
    return FOUND
