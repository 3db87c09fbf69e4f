"""What to do about rejected pods, in steps with commands. Pure."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from shlex import quote
from typing import Final

from agent.checks.devices.kubelet_versions import deletes_only_at_restart
from agent.checks.devices.rejection_outcome import Case
from agent.checks.kubelet_service import Distribution, distribution
from agent.model import catalog
from agent.model.rejections import POD_REASONS, PodOutcome, RejectionCause, RejectionKind
from agent.model.remedy import Remedy
from agent.model.snapshot import Snapshot, known_or
from agent.model.text import LONGEST_LIST

_NO_FORCE: Final = "never with --force"
_KINDS_BY_TIME: Final = frozenset({
    RejectionKind.UNREGISTERED,
    RejectionKind.NO_HEALTHY,
    RejectionKind.INSUFFICIENT,
    RejectionKind.PLUGIN_GONE,
    RejectionKind.NO_CAPACITY,
})  # fmt: skip
"""What times explain. Of others, the message itself says what it was."""
_WHEN: Final = {
    RejectionCause.EXHAUSTED: "Once a device is free, ",
    RejectionCause.DEVICES_LEAKED: "Once the node is drained and its kubelet restarted, ",
    RejectionCause.UNLISTED_POD: "Once the kubelet has been restarted and has ended that pod, ",
    RejectionCause.PLUGIN_ERROR: "Once the device plugin refuses it no more, ",
    RejectionCause.CHECKPOINT_FAILED: "Once the kubelet can write to its disk, ",
}
"""When a pod can be created again, for causes of which healthy devices are no end."""
_MANIFESTS: Final = {
    Distribution.K3S: "/var/lib/rancher/k3s/agent/pod-manifests",
    Distribution.RKE2: "/var/lib/rancher/rke2/agent/pod-manifests",
    Distribution.OTHER: "/etc/kubernetes/manifests",
}
_LISTED: Final = 10
"""How many pods a command names where another one can select them."""
_NODE: Final = re.compile(r"\bNODE\b")
"""How commands in the catalog name the node."""
_SAFE: Final = re.compile(r"[A-Za-z0-9._/-]+")
_TAINT: Final = "device=missing:NoSchedule"


def keep_away(
    cases: Sequence[Case], snapshot: Snapshot, *, meanwhile: Iterable[Remedy]
) -> Iterator[Remedy]:
    """Yield how to stop a storm that goes on, other steps, and how to let pods come again."""
    name = quote(snapshot.node_name)
    node = known_or(snapshot.node, None)
    if all(map(_is_refused_anywhere, cases)):
        yield from _about_template(cases[0])
        yield from meanwhile
        return

    if any(case.kind == "DaemonSet" for case in cases):
        text = (
            "Keep the pods away with a taint, or their DaemonSet sends more. A cordon does not "
            "stop it. The taint does, unless the pods tolerate it:"
        )
        yield Remedy(text, f"kubectl taint node {name} {_TAINT}")
        yield from meanwhile
        undo = f"kubectl taint node {name} {_TAINT}-"
        yield Remedy("Remove the taint when the cause is gone:", undo)
        return

    if node is None or not node.unschedulable:
        text = "Cordon the node first, or the scheduler sends more pods:"
        yield Remedy(text, f"kubectl cordon {name}")
    yield from meanwhile

    yield Remedy("Uncordon the node when the cause is gone:", f"kubectl uncordon {name}")


def _is_refused_anywhere(case: Case) -> bool:
    """Whether every node that is set up like this one refuses the pod."""
    rejection = case.rejection
    is_of_pod = rejection.reason in POD_REASONS and rejection.available is None
    return rejection.refused is RejectionKind.REQUEST_REFUSED or is_of_pod


def _about_template(case: Case) -> Iterator[Remedy]:
    """Yield how to stop a storm of pods that no node of this kind can run."""
    kind, _, name = case.pod.controller.partition("/")
    yield Remedy(
        "Correct what the pods ask for, or scale their controller to 0. A cordon sends them to "
        "other nodes, and those that are set up alike refuse them as well. The controller, or what "
        "controls it, has the template:",
        f"kubectl describe {quote(kind.lower())} -n {quote(case.pod.namespace)} {quote(name)}",
    )


def steps_about(
    cases: Sequence[Case],
    outcome: PodOutcome,
    snapshot: Snapshot,
    registered: Collection[str],
) -> Iterator[Remedy]:
    """Yield what to do about pods that were rejected alike and have the same outcome."""
    first = cases[0]
    yield from _meaning(first, snapshot.node_name)
    if outcome is PodOutcome.REJECTED_AGAIN:
        yield from _about_plugin(first, snapshot)
    if outcome is PodOutcome.TERMINATING_STUCK:
        yield from _about_deletion(first, snapshot)
        return
    if first.pod.static:
        yield from _about_static_pods(_when(cases, registered), snapshot)
        return

    them = "it" if len(cases) == 1 else "them"
    if outcome is PodOutcome.STUCK:
        if not first.pod.controller:
            yield from _save(cases)
        text = f"{_when(cases, registered)}delete {them}, {_NO_FORCE}:"
    elif outcome is PodOutcome.REJECTED_AGAIN:
        text = f"When no more pods are rejected, delete {them}, {_NO_FORCE}:"
    else:
        text = f"Delete {them} at your convenience, {_NO_FORCE}:"

    commands = _deletions(cases, snapshot)
    if not commands:
        yield Remedy(f"{text.removesuffix(':')}.")
    for command in commands:
        yield Remedy(text, command)


def _when(cases: Sequence[Case], registered: Collection[str]) -> str:
    """Return the begin of a sentence: when a pod can be created again."""
    first = cases[0]
    if first.rejection.refused is RejectionKind.NOT_FOR_A_DEVICE:
        return f"Once the node can run {'it' if len(cases) == 1 else 'them'}, "
    if first.rejection.refused is RejectionKind.REQUEST_REFUSED:
        return "Once the request is corrected, "
    if first.cause in _WHEN:
        return _WHEN[first.cause]
    if first.rejection.refused not in _KINDS_BY_TIME:
        return "Once the cause is gone, "
    if first.resource in first.pod.dra_resources:
        return f"Once the kubelet knows that DRA serves {first.resource}, "
    if first.resource in registered:
        return f"{first.resource} is healthy again: "
    return "Once the devices are healthy again, "


def _meaning(case: Case, node_name: str) -> Iterator[Remedy]:
    """Yield what a message means of which no times tell the cause."""
    if case.rejection.refused in _KINDS_BY_TIME:
        return
    for match in catalog.matches(case.rejection.message)[:1]:
        yield Remedy(f"What it means: {match.fill_in(match.entry.meaning)}")
        if match.entry.look:
            look = _NODE.sub(lambda _: node_name, match.fill_in(match.entry.look))
            look = look.removesuffix(".")
            yield Remedy(f"{look}. For more:", f"nodeleak explain {match.entry.key}")


def _about_plugin(case: Case, snapshot: Snapshot) -> Iterator[Remedy]:
    """Yield what to look at while a plugin makes the kubelet reject pods."""
    if case.rejection.refused not in _KINDS_BY_TIME:
        return
    if case.cause is RejectionCause.PLUGIN_RESTART:
        name = quote(snapshot.node_name)
        yield Remedy(
            f"Find out why the plugin of {case.resource} restarts: see the restarts of its pod, "
            "and whether a second plugin offers the same resource:",
            f"kubectl get pods -A -o wide --field-selector=spec.nodeName={name}",
        )
    if case.cause is RejectionCause.UNHEALTHY:
        yield Remedy(
            f"Read the log of the pod of the plugin of {case.resource}: it says why its devices "
            "are unhealthy."
        )


def _about_static_pods(when: str, snapshot: Snapshot) -> Iterator[Remedy]:
    directory = _MANIFESTS[distribution(snapshot)]
    yield Remedy(
        f"{when}move its manifest out of the kubelet's directory of static pods (`staticPodPath`, "
        f"mostly {directory}), wait a minute, and move it back."
    )
    yield Remedy(
        "Or restart the kubelet: every device plugin must then register again. Deleting the pod "
        "does not help: it is a mirror of the manifest."
    )


def _about_deletion(case: Case, snapshot: Snapshot) -> Iterator[Remedy]:
    """Yield what completes a deletion, by the kubelet's version."""
    pod = case.pod
    if pod.finalizers:
        finalizers = ", ".join(pod.finalizers)
        yield Remedy(f"Let the controller that owns it remove the finalizer: {finalizers}.")
        return

    restart = deletes_only_at_restart(snapshot.kubelet_version)
    if restart is None:
        shown = f"kubectl get node {quote(snapshot.node_name)} -o wide"
        yield Remedy("Look up the version of the kubelet:", shown)
    if restart is not False:
        yield Remedy(
            "Kubelets 1.27.0 to 1.27.3 complete such a deletion only when they restart "
            "(kubernetes#118472). "
            "Ask the owner of the node first: every device plugin must then register again."
        )
    if restart is not True:
        which = "This kubelet" if restart is False else "Every other kubelet"
        path = f"/var/lib/kubelet/pods/{quote(pod.uid)}/volumes"
        yield Remedy(
            f"{which} completes it once the pod's containers and volumes are gone. See on the node "
            "which volumes remain, and delete nothing there:",
            f"ls {path}/*",
        )


def _save(cases: Sequence[Case]) -> Iterator[Remedy]:
    """Yield how to keep the manifests of pods that nothing creates again."""
    text = "Save the manifest, to create it again:"
    for namespace, names in _by_namespace(cases).items():
        if len(names) <= _LISTED:
            file = f"{names[0]}.yaml" if len(names) == 1 else "rejected-pods.yaml"
            pods = " ".join(map(quote, names))
            command = f"kubectl get pod -n {quote(namespace)} {pods} -o yaml > {quote(file)}"
            yield Remedy(text, command)


def _by_namespace(cases: Sequence[Case]) -> dict[str, list[str]]:
    names: defaultdict[str, list[str]] = defaultdict(list)
    for case in cases:
        names[case.pod.namespace].append(case.pod.name.partition("/")[2])
    return dict(names)


def _deletions(cases: Sequence[Case], snapshot: Snapshot) -> list[str]:
    """Return a command for each namespace that deletes these pods, and no others."""
    commands = []
    for namespace, names in _by_namespace(cases).items():
        here = [case for case in cases if case.pod.namespace == namespace]
        selection = "" if len(names) <= _LISTED else _deletion_of_many(here, snapshot)
        if not selection and len(names) <= LONGEST_LIST:
            pods = " ".join(map(quote, names))
            selection = f"kubectl delete pod -n {quote(namespace)} {pods}"
        commands.append(selection)
    return commands if all(commands) else []


def _deletion_of_many(cases: Sequence[Case], snapshot: Snapshot) -> str:
    """Return a command that selects pods by reason and controller; empty: there is none."""
    reasons = sorted({case.rejection.reason for case in cases})
    owners = sorted({case.pod.controller.partition("/")[2] for case in cases})
    if len(owners) > 1 or not all(_SAFE.fullmatch(word) for word in (*reasons, *owners)):
        return ""

    namespace = quote(cases[0].pod.namespace)
    selector = quote(f"spec.nodeName={snapshot.node_name},status.phase=Failed")
    is_reason = " || ".join(f'$2 == "{reason}"' for reason in reasons)
    program = quote(f'$3 == "{owners[0]}" && ({is_reason}) {{print $1}}')
    columns = ":.metadata.name,:.status.reason,:.metadata.ownerReferences[0].name"

    return (
        f"kubectl get pods -n {namespace} --field-selector={selector} --no-headers "
        f"-o custom-columns={quote(columns)} | awk {program} | "
        f"xargs -r kubectl delete pod -n {namespace}"
    )
