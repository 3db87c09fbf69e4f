"""Which container runtime the pods of this node belong to. Pure.

The kubelet's flags and configuration say it, and `nodeInfo` of its Node object. If they contradict
each other, or the runtime that they name was not asked, it is unknown whose pods run here.
"""

from collections.abc import Mapping
from typing import Final

from agent.checks.runtime_versions import deletes_at_start
from agent.model.runtime import CONTAINERD, CRI_O, DOCKER, ContainerRuntime, KubeletRuntime
from agent.model.settings import endpoint_path
from agent.model.snapshot import NotRequested, Snapshot, Unavailable, is_missing, known_or
from agent.model.versions import Version, is_since, version_numbers

_BEFORE_CRI: Final = (ContainerRuntime(DOCKER),)
"""What was asked for a recording that does not say it."""
_FIRST_TO_RECORD: Final[Mapping[str, tuple[Version, ...]]] = {
    # Before containerd#5904, which was backported, it recorded a sandbox after its network setup.
    CONTAINERD: ((1, 5, 15), (1, 6, 9), (1, 7, 0)),
    CRI_O: ((1, 20, 0),),
}


def kubelet_runtime(snapshot: Snapshot) -> KubeletRuntime:
    """Return which of the runtimes that were asked is the kubelet's, and what follows from that."""
    processes = known_or(snapshot.processes, None)
    node = known_or(snapshot.node, None)
    # The kubelet names `docker` or an endpoint, its Node reports such as `docker://20.10.24`.
    configured = (processes.runtime if processes else None) or ""
    reported = node.runtime if node else ""
    disputed = processes is not None and processes.runtime_disputed
    contradiction = _contradiction(configured, reported, disputed=disputed)

    asked = known_or(snapshot.runtimes, ())
    if isinstance(snapshot.runtimes, NotRequested):
        asked = _BEFORE_CRI
    used: tuple[ContainerRuntime, ...] = ()
    if contradiction is None:
        used = tuple(runtime for runtime in asked if _is_used(runtime, configured, reported))

    name = configured or reported
    keeps_checkpoints = _keeps_checkpoints(name, asked, used, snapshot)
    plugin_files = any(network.plugin_files for network in known_or(snapshot.networks, ()))
    return KubeletRuntime(
        asked=asked,
        used=used,
        not_asked=None if contradiction or used else name or None,
        contradiction=contradiction,
        keeps_checkpoints=contradiction is not None or keeps_checkpoints,
        # If plugins are in files of their own, no result names them, and the DEL of one may go by
        # the address.
        deletes_at_start=bool(used) and not plugin_files and all(map(deletes_at_start, used)),
        without_record_order=tuple(
            runtime
            for runtime in used or asked
            if runtime.name != DOCKER and not record_before_address(runtime.name, runtime.version)
        ),
    )


def _contradiction(configured: str, reported: str, *, disputed: bool) -> str | None:
    """Return who contradicts whom. Anyone can name a process kubelet."""
    if not configured:
        return None
    if disputed:
        return f"processes named kubelet name different runtimes, such as {configured}"
    if not reported or (configured == DOCKER) == _is_docker(reported):
        return None
    return f"the kubelet names {configured} as runtime, and its Node names {reported}"


def _is_used(runtime: ContainerRuntime, configured: str, reported: str) -> bool:
    """Return whether the kubelet uses it; if its runtime is unknown, whether a setting names it."""
    if configured:
        has_endpoint = runtime.endpoint != "" and endpoint_path(configured) == runtime.endpoint
        return configured == runtime.name or has_endpoint

    if reported:
        name, _, version = reported.partition("://")
        versions = {version_numbers(version), version_numbers(runtime.version)} - {None}
        return name == runtime.name and len(versions) <= 1
    return runtime.chosen


def _keeps_checkpoints(
    name: str,
    asked: tuple[ContainerRuntime, ...],
    used: tuple[ContainerRuntime, ...],
    snapshot: Snapshot,
) -> bool:
    """Return whether the kubelet has checkpoints, as only a kubelet with docker has.

    If its runtime is unknown, it may have some if docker was asked, or if there are some.
    """
    if name:
        return _is_docker(name) or has_docker(used)
    if not asked or has_docker(asked):
        return True

    reading = snapshot.checkpoints
    unreadable = isinstance(reading, Unavailable) and not is_missing(reading)
    return unreadable or bool(known_or(reading, ()))


def has_docker(runtimes: tuple[ContainerRuntime, ...]) -> bool:
    return any(runtime.name == DOCKER for runtime in runtimes)


def _is_docker(name: str) -> bool:
    return name == DOCKER or name.startswith(f"{DOCKER}://")


def record_before_address(name: str, version: str) -> bool:
    """Return whether a runtime is known to record each sandbox before it requests an address.

    If it does, and reservations are read before its records, a reservation without a record has no
    owner.
    """
    return is_since(version, _FIRST_TO_RECORD.get(name, ())) is True
