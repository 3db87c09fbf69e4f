"""What stands between a node's pods and their network: the CNI configuration and its plugins. Pure.

containerd loads nothing if the file that it reads first cannot be parsed (go-cni's
`loadFromConfDir`); CRI-O and docker skip such a file, and CRI-O also one whose plugin is missing.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final, NamedTuple

from agent.checks.kubelet_runtime import kubelet_runtime
from agent.checks.waiting_pods import unstarted_pods, waiting_pods
from agent.model.finding import WAITING_PODS
from agent.model.node_network import CniFile, CniFiles, SubnetEnv
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER
from agent.model.snapshot import Known, NotRequested, PluginProcess, Snapshot, known_or
from agent.model.text import FEW, count_of, join_few, join_names

HANGS_AFTER: Final = timedelta(minutes=1)
"""No CNI plugin that works runs for so long."""
_YOUNG: Final = timedelta(minutes=5)
"""For so long after the node's start its CNI may not have written its configuration."""
_FLANNEL: Final = "flannel"
INSTALL: Final = (
    "see why the pod of the CNI's DaemonSet does not run here, which installs plugins, or install "
    "it yourself"
)
_NAMES: Final = {CRI_O: "CRI-O"}


class NoNetwork(NamedTuple):
    """Why a runtime has no network for pods."""

    reason: str  # such as `10-mesh.conflist is empty`
    step: str  # what to do about that; empty: it depends
    may_come: bool
    """Whether it may be that the CNI of a new node has not written its configuration yet."""


def why_no_network(snapshot: Snapshot) -> NoNetwork | None:
    """Return why the runtime has no network for pods; None: it has one, or that is not known."""
    runtime = kubelet_runtime(snapshot).name
    status = known_or(snapshot.runtime_status, None)
    files = known_or(snapshot.cni_files, None)
    if not _has_no_network(snapshot, runtime):
        return None
    if files and (problem := _unusable(files, snapshot)):
        return problem

    words = (status.load_error or status.message or status.reason) if status else ""
    said = f"{spelled(runtime)} says: {words}" if words else "it does not say why"
    return NoNetwork(said, "", may_come=True)


def _has_no_network(snapshot: Snapshot, runtime: str) -> bool:
    """Return whether the runtime says so; of docker, which does not, whether files show it."""
    if snapshot.network_ready is not None:
        loaded_none = runtime == CONTAINERD and snapshot.networks == Known(())
        return loaded_none or not snapshot.network_ready

    # docker does not say it, and the kubelet may read another directory. kubenet needs no file.
    files = known_or(snapshot.cni_files, None)
    node = known_or(snapshot.node, None)
    is_known = isinstance(snapshot.networks, (Known, NotRequested))

    if runtime != DOCKER or is_known or files is None or not _unusable(files, snapshot):
        return False
    return bool(waiting_pods(snapshot)) or bool(node and node.not_ready)


def blocking_files(snapshot: Snapshot) -> list[CniFile]:
    """Return the damaged files that matter to the runtime.

    containerd reads only the first of its files (its `max_conf_num` is 1 by default) and reports
    the one that it could not load. The other runtimes try each file.
    """
    files = known_or(snapshot.cni_files, None)
    if files is None:
        return []

    broken = [file for file in files.files if file.problem]
    if kubelet_runtime(snapshot).name != CONTAINERD:
        return broken

    status = known_or(snapshot.runtime_status, None)
    load_error = status.load_error if status else ""
    return [file for file in broken if file is files.files[0] or f"/{file.name}:" in load_error][:1]


def _unusable(files: CniFiles, snapshot: Snapshot) -> NoNetwork | None:
    """Return why the runtime can use no file of the directory; None: no reason is seen."""
    runtime = kubelet_runtime(snapshot).name
    directory = files.directory
    if not files.exists:
        step = "start the DaemonSet of the cluster's CNI, which writes its configuration there"
        if runtime == CONTAINERD:
            step += ", then restart containerd, which watches the directory only from its start"
        return NoNetwork(f"{directory} does not exist", step, may_come=True)
    if not files.files:
        step = "start the DaemonSet of the cluster's CNI, which writes it"
        return NoNetwork(f"{directory} has no CNI configuration", step, may_come=True)

    broken = blocking_files(snapshot)
    usable = [file for file in files.files if not file.problem]
    if broken and (runtime == CONTAINERD or not usable):
        reason = "; ".join(f"{file.name} {file.problem}" for file in broken[:FEW])
        return NoNetwork(f"{reason} (in {directory})", _repair(broken, usable), may_come=False)

    if runtime == CRI_O and files.missing_plugins:
        reason = not_installed(files.missing_plugins, usable[0].name)
        return NoNetwork(reason, INSTALL, may_come=True)
    return None


def not_installed(plugins: Sequence[str], of: str) -> str:
    """Say that plugins are missing. `of`: what names them, as a file."""
    noun, verb = ("plugin", "is") if len(plugins) == 1 else ("plugins", "are")
    return f"{noun} {', '.join(plugins)} of {of} {verb} not installed"


def _repair(broken: Sequence[CniFile], usable: Sequence[CniFile]) -> str:
    names = join_names([file.name for file in broken])
    if not usable:
        return f"repair {names}, or restart the pod of the CNI's DaemonSet, which writes its file"
    first = usable[0]
    return (
        f"move {names} out of the directory and keep {first.name} (network {first.network}), or "
        f"repair {names}"
    )


class Skipped(NamedTuple):
    """A file that a runtime skips, although it would be the first."""

    file: str
    reason: str  # such as `10-mesh.conflist is empty`
    used: CniFile  # in its place


def first_file_skipped(snapshot: Snapshot) -> Skipped | None:
    """Return the file that would be first if CRI-O or docker did not skip it."""
    files = known_or(snapshot.cni_files, None)
    if files is None or kubelet_runtime(snapshot).name not in {CRI_O, DOCKER}:
        return None
    usable = [file for file in files.files if not file.problem]
    if not usable:
        return None

    first = files.files[0]
    if first.problem:
        of_used = {usable[0].network, *(network.name for network in usable[0].networks)}
        if of_used.isdisjoint(snapshot.network_names):
            return None  # CRI-O is configured to use another file
        return Skipped(first.name, f"{first.name} {first.problem}", usable[0])

    if files.missing_plugins and len(usable) > 1:
        reason = not_installed(files.missing_plugins, first.name)
        return Skipped(first.name, reason, usable[1])
    return None


def missing_plugins(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the types of the plugins that the network of new pods needs and the node lacks."""
    files = known_or(snapshot.cni_files, None)
    return (files.missing_plugins or ()) if files else ()


def missing_subnet_env(snapshot: Snapshot) -> SubnetEnv | None:
    """Return flannel's file if it has no subnet, and the pods' network needs it."""
    files = known_or(snapshot.cni_files, None)
    if files is None or files.subnet_env is None or not files.subnet_env.problem:
        return None

    networks = known_or(snapshot.networks, ())
    needed = any(_FLANNEL in network.plugins and not network.ranges for network in networks)
    return files.subnet_env if needed else None


def hanging_plugin(snapshot: Snapshot) -> PluginProcess | None:
    """Return the plugin that has run for the longest time, if that is longer than any works."""
    processes = known_or(snapshot.processes, None)
    plugins = processes.plugins if processes else ()
    oldest = min(plugins, key=lambda plugin: plugin.started, default=None)
    if oldest is None or snapshot.taken_at - oldest.started < HANGS_AFTER:
        return None
    return oldest


def is_young(snapshot: Snapshot) -> bool:
    """Return whether the node booted or registered less than five minutes ago."""
    node = known_or(snapshot.node, None)
    registered = node.created if node else None
    is_new = registered is not None and snapshot.api_time - registered < _YOUNG
    return is_new or snapshot.uptime < _YOUNG


def waiting(snapshot: Snapshot) -> str:
    """Say which pods wait for their network; empty: none is known to.

    The finding of pods that wait names those that have no sandbox.
    """
    waits = waiting_pods(snapshot)
    if not waits:
        return ""

    text = f"{count_of(len(waits), 'pod waits', 'pods wait')} for an address"
    unstarted = {wait.pod.uid for wait in unstarted_pods(snapshot)}
    if isinstance(snapshot.containers, Known) and unstarted.issuperset(pod.uid for pod in waits):
        return f"{text} (see {WAITING_PODS})"
    return f"{text}: {join_few(sorted(pod.name for pod in waits))}"


def spelled(runtime: str) -> str:
    return _NAMES.get(runtime, runtime)
