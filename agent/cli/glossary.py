"""Every word that nodeleak prints, with what it means and what to run next. Some words have several meanings."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.config import all_settings, option, variable
from agent.exporters.metric_help import HELP, PREFIX
from agent.exporters.text.clean import WHEN_HALTED

if TYPE_CHECKING:
    from enum import StrEnum


class Term(NamedTuple):
    word: str
    kind: str
    text: str


FINDING: Final = "finding"
ALERT: Final = "alert"
METRIC: Final = "metric"
SETTING: Final = "setting"
SOURCE: Final = "source"

HEADLINES: Final = {
    "ok": "Every check ran, and there are no findings, or only informational ones.",
    "unconfirmed": "There are findings, but none has lasted for as long as --confirm-after.",
    "incomplete": "Some data are unavailable, so checks could not run or know less. The text names the first source "
    "and the reason; the end of the report lists all of them.",
}
"""What the headline of a report begins with, beside a severity."""

PHASES: Final = {
    "candidate": "Seen, but not yet for as long as --confirm-after. It may go away by itself.",
    "confirmed": "It has lasted for as long as --confirm-after.",
}

LEAK_CAUSES: Final = {
    "kubelet_restart": "The kubelet restarted after the address was reserved. A kubelet that restarts can forget a "
    "sandbox before it has released its address.",
    "runtime_restart": "The container runtime restarted after the address was reserved. With containerd and CRI-O, "
    "most likely while it set up the pod's network: it started within 5 minutes of that, and libcni's cache does not "
    "show that the setup was finished.\nDo: drain a node before you restart its runtime (or k3s). If nobody restarted "
    "it, find out why it stopped: `journalctl -u containerd`, or `-u k3s`. Containerd older than 1.7.31, 2.0.8, 2.1.7 "
    "or 2.2.2 may never release such an address: upgrade it.",
    "runtime_state_lost": "The container runtime started without its records of earlier sandboxes, and several of them "
    "still have a result in libcni's cache. The runtime's data was deleted, or the node changed to another runtime.\n"
    "Do: drain a node before its runtime's data is deleted, so that its pods are torn down.",
    "node_reboot": "The node booted after the address was reserved. host-local's files survive that; sandboxes do not.",
    "network_renamed": "The pods of this node get their addresses from another network now. The sandbox was removed "
    "after the CNI configuration had changed. The runtime tore it down with the new configuration, which does not "
    "release this address.\nDo: drain a node before its CNI configuration is replaced.",
    "teardown_skipped": "The runtime has no record of the sandbox, but libcni's cache still has the result of its CNI "
    "ADD: CNI DEL was not completed. Someone removed the sandbox with `ctr`, or the runtime skipped or gave up the "
    "teardown.\nDo: remove sandboxes with `crictl stopp` and `crictl rmp`, never with `ctr`.",
    "setup_failed": "libcni's cache has results of other pods of the network, but none of this sandbox: its CNI ADD "
    "was not completed, or CNI DEL failed and the runtime gave up (CRI-O then drops the result).\n"
    "Do: run `kubectl get events -A --field-selector reason=FailedCreatePodSandBox`, and repair the CNI plugin that "
    "the events of this node's pods name.",
    "empty_file": "The reservation names no container: a crash or a power failure came before the file was written, or "
    "somebody keeps the address free.\nDo: if nobody does, run `nodeleak clean --apply --ip ADDRESS`.",
    "unknown": "The node has no evidence of a cause.",
}

REJECTION_CAUSES: Final = {
    "node_reboot": "After the node booted, the kubelet admitted the pod before the device plugin had registered.",
    "kubelet_restart": "The kubelet restarted and admitted the pod before the device plugin had registered again.",
    "plugin_restart": "The device plugin was gone, or just restarting, when the pod was admitted.",
    "init_container": "The pod was running, and after a restart the kubelet requested the devices of its init "
    "container again. This is a bug of some kubelet versions.",
    "exhausted": "All devices of the resource were in use.",
    "unhealthy": "The device plugin was registered, but no device was healthy.",
    "readmitted_after_completion": "The pod of a Job had already completed, and the kubelet admitted it again after a "
    "restart.",
    "unverified": "The records of the node do not prove a cause, or their times are too close together.",
}

POD_OUTCOMES: Final = {
    "replaced_by_controller": "Its controller creates another pod. The rejected pod stays behind as Failed; delete it "
    "at your convenience.",
    "stuck": "Nothing replaces this pod while it exists. Save its manifest, then delete it: its controller creates a "
    "new one; without a controller, create it again yourself.",
    "terminating_stuck": "It was deleted and should be gone by now. If a finalizer remains, the controller that owns "
    "it must remove it. Otherwise only a kubelet restart makes the kubelet try again, and every device plugin must "
    "then register again: ask the owner of the node first.",
}

_MOUNTED: Final = "\nDo: if it is unavailable, check that the directory is that of this node, readable and mounted."
_HOST_PID: Final = "\nDo: if it is unavailable, check --proc; the agent's pod needs hostPID and runs as root."
_API_SERVER: Final = "\nDo: if it is unavailable, check the API server, credentials, RBAC and --node."
_SOURCES: Final = {
    "reservations": f"host-local's reservations: one file per address, below --cni-networks-dir.{_MOUNTED}",
    "checkpoints": f"The sandbox checkpoints of dockershim or cri-dockerd, in --checkpoint-dir. Only kubelets with "
    f"docker have them.{_MOUNTED}",
    "containers": "All containers and sandboxes of every container runtime that runs on this node.\nDo: run `docker "
    "ps` or `crictl pods` on the node. If that works, check --docker-host or --cri-endpoint, and the mount of the "
    "socket.",
    "runtimes": "The container runtimes that were asked, with their versions. It is never unavailable.",
    "networks": "The networks of the pods, with directories and ranges: those that containerd has loaded, otherwise "
    "the CNI configuration in --cni-config-dir.\nDo: if it is unavailable, check `crictl info` on the node, and the "
    "mounts of the socket and of the directory.",
    "cni_results": "libcni's cache, in --cni-cache-dir: a file with the result of each sandbox's CNI ADD. It shows "
    f"which pod an ID belonged to, the range and the network namespace.{_MOUNTED}",
    "addresses": f"Addresses configured in the network namespaces of all processes, from /proc.{_HOST_PID}",
    "mounted_namespaces": "The mount points of network namespaces on the node. They are read only while libcni's cache "
    f"names one for a reservation without an owner.{_HOST_PID}",
    "pods": f"The node's pods, from the API server.{_API_SERVER}",
    "node": f"The Node object, from the API server.{_API_SERVER}",
    "processes": "Start times of the node, the kubelet, container runtimes and CNI plugins at work, and which runtime "
    f"the kubelet names, from /proc.{_HOST_PID}",
    "device_plugins": "The kubelet's device plugin directory: sockets, the device checkpoint, and their history."
    f"{_MOUNTED}",
    "registration": "The Node object as last seen, whether it was being removed (in --state-dir), and two flags of the "
    "kubelet. It is never unavailable.",
    "autoscaler": "Provider IDs of other nodes and the status of cluster-autoscaler, read only if they are needed."
    f"{_API_SERVER}",
    "watches": "Versions of objects that the daemon's watches received. Only the daemon watches.\nDo: look at its log "
    "and metrics.",
    "mounts": "Volumes mounted on the node, read only while the status of the Node object lacks a volume.\n"
    "Do: check --kubelet-dir, that it is mounted at its path on the host, and hostPID.",
    "attachments": f"VolumeAttachments, claims and events, read only while a pod waits for a volume.{_API_SERVER}",
    "sandbox_failures": "Events of up to 4 pods that have waited for their sandbox for a minute, listed once a minute. "
    f"Without the right to list events they are not requested.{_API_SERVER}",
    "state": "The agent's own directory, --state-dir. Without it, the agent goes on and releases nothing. After a "
    "restart, it lacks the history of device plugins and the Node as last seen.\n"
    "Do: free space on its disk. If the disk hangs, look at `dmesg` of the node.",
    "journal": f"The journal of releases, in --state-dir.{_MOUNTED}",
}

CLUSTER: Final = {
    "CNIAddressPressure": "Condition of the Node object: True if the node has fewer free pod addresses than it may get "
    "pods. Maintained with --node-condition=on.",
    "CNIAddressesAvailable": "Reason of the condition CNIAddressPressure: there are enough free pod addresses.",
    "CNIAddressesScarce": "Reason of the condition CNIAddressPressure: the node may get more pods than it has free "
    "addresses.\nRun: nodeleak explain exhausted_range",
    "CNIAddressesExhausted": "Reason of the condition CNIAddressPressure: a network has no free address.\n"
    "Run: nodeleak explain exhausted_range",
    "CNIAddressesUnknown": "Reason of the condition CNIAddressPressure: some data are unavailable.\nRun: nodeleak scan",
    "ReleasedReservation": "Reason of an Event: cleanup released leaked addresses.\nRun: nodeleak journal",
}
"""Conditions and reasons of Events. An Event of a finding has the name of its detector as reason: LeakedReservation."""

ALERTS: Final = {
    "NodeleakLeakedAddresses": "Pod addresses of a node are leaked: reserved for containers that are gone. Nothing on "
    "the node frees them.\nRun: nodeleak scan, then nodeleak clean",
    "NodeleakRangeNearlyExhausted": "Less than a tenth of a node's pod addresses is free.\nRun: nodeleak scan --map",
    "NodeleakRangeFillingUp": "A node runs out of pod addresses within four hours at the present rate.\n"
    "Run: nodeleak scan --map",
    "NodeleakRangeExhausted": "A node has no free pod address: new pods stay in ContainerCreating.\n"
    "Run: kubectl cordon NODE, then nodeleak scan, and follow its steps",
    "NodeleakRangeTooSmall": "A node accepts more pods than it has free addresses for. Nothing fails until those "
    "pods arrive.\nRun: nodeleak explain exhausted_range",
    "NodeleakOverlappingRanges": "Two networks of a node can give out the same addresses: a new pod can get that of a "
    "running one.\nRun: nodeleak scan, nodeleak explain overlapping_ranges",
    "NodeleakFailingPlugin": "A CNI plugin fails on a node, and each retry of a pod leaks an address: mend it first.\n"
    "Run: nodeleak scan, nodeleak explain failing_plugin",
    "NodeleakUnexplainedExhaustion": "Pods find no free address, and nodeleak finds some: it reads other directories.\n"
    "Run: nodeleak scan, nodeleak explain unexplained_exhaustion",
    "NodeleakSharedAddress": "Two running pods of a node have the same address, and each gets traffic of the other.\n"
    "Run: nodeleak scan, nodeleak explain shared_ip",
    "NodeleakUnreservedAddress": "The address of a running pod is not reserved: the next pod may get the same one.\n"
    "Run: nodeleak scan, nodeleak explain unreserved_pod_ip",
    "NodeleakUnmanagedAddress": "A process, or a network namespace without one, uses a pod address, but the container "
    "runtime does not know its container.\n"
    "Run: nodeleak scan, nodeleak explain unmanaged_address",
    "NodeleakStuckTeardown": "The kubelet has not completed the teardown of a sandbox for more than an hour, or with "
    "containerd and CRI-O for a day: its address stays reserved.\nRun: nodeleak scan, nodeleak explain stuck_teardown",
    "NodeleakReleasesFailing": "Releases that passed every guard have been failing for half an hour.\n"
    "Run: nodeleak clean, nodeleak explain busy, nodeleak explain failed",
    "NodeleakCleanupHalted": "A container whose address was released has reappeared, so the address may be in use "
    f"twice. Nothing is released any more on this node.\nDo: {WHEN_HALTED}\nRun: nodeleak clean, nodeleak journal",
    "NodeleakRejectedPods": "The kubelet rejected pods for lack of a device, and nothing replaces them.\n"
    "Run: nodeleak timeline, nodeleak explain rejected_pod",
    "NodeleakLateDevicePlugin": "A device plugin has not registered again since the kubelet started. Pods that request "
    "its devices are rejected.\nRun: nodeleak timeline, nodeleak explain late_device_plugin",
    "NodeleakStartedWithoutDevice": "Pods run without the device that they request.\n"
    "Run: nodeleak scan, nodeleak explain started_without_device",
    "NodeleakVolumeLost": "Pods of a node use volumes that the status of the Node object does not list as attached.\n"
    "Run: nodeleak scan, nodeleak explain detached_volume",
    "NodeleakNodeUnregistered": "A node is running, but its Node object is missing or incomplete. Critical: an "
    "autoscaler may delete the machine.\nRun: nodeleak scan, nodeleak explain unregistered_node",
    "NodeleakWatchReplayed": "The API server sent outdated objects to a watch. Other components may act on them.\n"
    "Run: nodeleak explain replayed_watch",
    "NodeleakSourceDownManyNodes": "The agents of many nodes cannot read the same source, so that there is a common "
    "cause, such as the API server. What depends on the source is unknown.\nRun: nodeleak scan, on one of the nodes",
    "NodeleakAgentDownManyNodes": "The agents of many nodes do not respond to scrapes: there is a common cause.\n"
    "Run: kubectl describe daemonset for the agents",
    "NodeleakNodesWithoutAgent": "Prometheus scrapes no agent on some nodes. Nothing is known of them.\n"
    "Run: kubectl get pods -A -l app.kubernetes.io/name=nodeleak -o wide",
    "NodeleakSourceDown": "The agent could not read one of its sources for most of the last ten minutes. What depends "
    "on the source is unknown, and alerts about it cannot fire.\nRun: nodeleak scan",
    "NodeleakDetectorFailed": "A detector fails with an exception, which is a bug in nodeleak. What it would find is "
    "unknown.\nRun: nodeleak record --anonymous, and attach the recording to a bug report",
    "NodeleakAgentStalled": "The agent is up, but has stopped checking its node. Its metrics are outdated.\n"
    "Run: kubectl logs and kubectl delete pod for the agent of the node",
    "NodeleakAgentDown": "The agent of a node does not respond to scrapes. Nothing is known of the node.\n"
    "Run: kubectl describe pod for the agent of the node",
    "NodeleakAgentAbsent": "Prometheus scrapes no agent at all: none is running, or none is discovered.\n"
    "Run: kubectl get pods -A -l app.kubernetes.io/name=nodeleak -o wide",
}

WORDS: Final = {
    "reservation": "A file of host-local that is named like a pod address and holds the ID of the sandbox that has it.",
    "sandbox": "What a container runtime makes for a pod before its containers: among others the network namespace "
    "with the pod's address. For docker it is the container of the image `pause`.",
    "host-local": "A CNI plugin that gives pods addresses from a range of this node. It makes a reservation at CNI ADD "
    "and removes it at CNI DEL.",
    "leak": "A reservation whose sandbox is gone: nothing on the node will ever remove it.\nRun: nodeleak scan",
    "guard": "A check that must pass before an address is released. If it objects, its reason has a name, such as "
    "not_confirmed.\nRun: nodeleak clean, which releases nothing and prints the reasons",
    "snapshot": "Everything that was read of the node at one time. Nothing is released because of one snapshot alone.",
    "sync": "What the daemon does every --interval: take a snapshot, check it, report, and clean if it is asked to.",
    "FailedCreatePodSandBox": "Reason of an Event of the kubelet: the container runtime could not make a sandbox. The "
    "end of the message says why: no free address, a CNI plugin that fails, or something else.\n"
    "Run: nodeleak scan, nodeleak explain failing_plugin",
    "recording": "A file with snapshots of a node.\nRun: nodeleak record --anonymous, nodeleak scan --recording FILE",
}

MESSAGES: Final = {
    "no ip addresses available in range set": "NodeleakRangeExhausted",
    "failed to allocate for range": "NodeleakRangeExhausted",
    "failed to find plugin": "failing_plugin",
    "failed to create pod sandbox": "FailedCreatePodSandBox",
    "unexpectedadmissionerror": "rejected_pod",
    "no healthy devices present": "rejected_pod",
    "volume not attached according to node status": "detached_volume",
}
"""What kubelet, runtimes and CNI plugins print, in lower case, and the word that explains it."""

METRICS: Final = {f"{PREFIX}{name}": text for name, text in HELP.items()} | {
    "nodeleak_events_sent_total": "Kubernetes Events created or updated, by reason.",
    "nodeleak_events_dropped_total": "Kubernetes Events that were due and not sent, by cause.",
    "nodeleak_node_condition_patches_total": "Patches of the node condition, by result.",
}


def entries() -> tuple[Term, ...]:
    """Return every word of every kind, in the order of the list that `explain` prints."""
    return tuple(Term(word, kind, text) for kind, texts in _kinds() for word, text in texts.items())


def _kinds() -> Iterator[tuple[str, Mapping[str, str]]]:
    import inspect

    from agent.checks.registry import DETECTORS
    from agent.model.assessment import State
    from agent.model.finding import Severity
    from agent.model.release import BlockedBy, Reason, Verdict
    from agent.model.status import NodeState
    from agent.model.volumes import Confidence

    yield FINDING, {detector.NAME: inspect.getdoc(detector) or "" for detector in DETECTORS}
    yield "severity of a finding", _documented(Severity)
    yield "headline of a report", HEADLINES
    yield "state of a node in nodeleak status", _documented(NodeState)
    yield "phase of a finding", PHASES
    yield "state of a reservation", _documented(State)
    yield "likely cause of a leak", LEAK_CAUSES
    yield "reason why clean refuses an address", _documented(Reason)
    yield "blocker: why no release is possible here", _documented(BlockedBy)
    yield "result of clean for an address", _documented(Verdict)
    yield "likely cause of a pod rejection", REJECTION_CAUSES
    yield "outcome of a rejected pod", POD_OUTCOMES
    yield "evidence that a volume is lost", _documented(Confidence)
    yield SOURCE, _SOURCES
    yield "Kubernetes condition or Event", CLUSTER
    yield ALERT, ALERTS
    yield "word", WORDS
    yield METRIC, METRICS
    yield SETTING, {name: _setting(name) for name in all_settings()}


def _setting(name: str) -> str:
    setting = all_settings()[name]
    return "\n".join(
        [
            f"{setting.help[0].upper()}{setting.help[1:]}.",
            f"Default: {setting.default}" if setting.default else "",
            f"Option: {option(name)}={setting.metavar} ({', '.join(sorted(setting.commands))})",
            f"Environment variable: {variable(name)}",
        ]
    ).replace("\n\n", "\n")


def _documented(kind: "type[StrEnum]") -> dict[str, str]:
    """Return the text below each member of an enum. Python does not keep it, so it is read from the source."""
    import inspect
    import re

    members = re.findall(r'^    \w+ = "(\w+)"\n    """(.*?)"""$', inspect.getsource(kind), re.MULTILINE | re.DOTALL)
    return {name: inspect.cleandoc(text) for name, text in members}
