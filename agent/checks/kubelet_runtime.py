"""Which container runtime the pods of this node belong to. Pure.

The kubelet's flags and configuration say it, and `nodeInfo` of its Node object. Where they contradict each other, or
the runtime that they name was not asked, nobody knows whose pods run here.
"""

from collections.abc import Iterable
from typing import Final

from agent.model.runtime import (
    DOCKER,
    ContainerRuntime,
    endpoint_path,
    record_before_address,
    version_numbers,
)
from agent.model.snapshot import Known, NotRequested, Snapshot, Unavailable, is_missing, known_or

_BEFORE_CRI: Final = (
    ContainerRuntime(DOCKER),
)  # what was asked for a recording that does not say it


def asked(snapshot: Snapshot) -> tuple[ContainerRuntime, ...]:
    """Return the runtimes that were asked for their containers."""
    return (
        _BEFORE_CRI
        if isinstance(snapshot.runtimes, NotRequested)
        else known_or(snapshot.runtimes, ())
    )


def of_the_kubelet(snapshot: Snapshot) -> tuple[ContainerRuntime, ...]:
    """Return the runtime that the kubelet uses; empty: it is not known, or it was not asked.

    Where neither the kubelet nor the Node names a runtime, it is what somebody chose. The Node does not tell two
    runtimes of the same name and version apart: then it is either.
    """
    if contradiction(snapshot):
        return ()
    named, reported = _named(snapshot), _reported(snapshot)
    return tuple(runtime for runtime in asked(snapshot) if _is_kubelets(runtime, named, reported))


def _is_kubelets(runtime: ContainerRuntime, named: str, reported: str) -> bool:
    if named:
        return named == runtime.name or (
            runtime.endpoint != "" and endpoint_path(named) == runtime.endpoint
        )
    if reported:
        name, _, version = reported.partition("://")
        versions = {version_numbers(version), version_numbers(runtime.version)} - {None}
        return name == runtime.name and len(versions) <= 1
    return runtime.chosen


def names(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the name of the kubelet's runtime, or, where that is not known, of each that was asked."""
    return tuple(
        dict.fromkeys(runtime.name for runtime in of_the_kubelet(snapshot) or asked(snapshot))
    )


def name_of(snapshot: Snapshot) -> str:
    """Return what texts call the runtime."""
    found = names(snapshot)
    return found[0] if len(found) == 1 else "the container runtime"


def keeps_checkpoints(snapshot: Snapshot) -> bool:
    """Return whether the kubelet has checkpoints of its sandboxes, as a kubelet with docker has.

    Where its runtime is not known, it may have some if docker was asked, or if there are some.
    """
    told = _named(snapshot) or _reported(snapshot)
    if contradiction(snapshot) or _is_docker(told):
        return True
    if told:
        return _any_docker(of_the_kubelet(snapshot))
    if not asked(snapshot) or _any_docker(asked(snapshot)):
        return True
    reading = snapshot.checkpoints
    return bool(known_or(reading, ())) or (
        isinstance(reading, Unavailable) and not is_missing(reading)
    )


def forgets_checkpoints(snapshot: Snapshot) -> bool:
    """Return whether the kubelet is known to leave alone a sandbox of which only a checkpoint is left.

    From 1.36 it lists sandboxes with an empty filter, and cri-dockerd then leaves these out (0.4.3).
    """
    node = known_or(snapshot.node, None)
    return (version_numbers(node.kubelet) or ()) >= (1, 36) if node else False


def _any_docker(runtimes: Iterable[ContainerRuntime]) -> bool:
    return any(runtime.name == DOCKER for runtime in runtimes)


def _is_docker(told: str) -> bool:
    return told == DOCKER or told.startswith(f"{DOCKER}://")


def unordered(snapshot: Snapshot) -> tuple[ContainerRuntime, ...]:
    """Return the runtimes whose list may lack a sandbox that has an address already."""
    with_cri = (
        runtime for runtime in of_the_kubelet(snapshot) or asked(snapshot) if runtime.name != DOCKER
    )
    return tuple(
        runtime for runtime in with_cri if not record_before_address(runtime.name, runtime.version)
    )


def deletes_at_start(snapshot: Snapshot) -> bool:
    """Return whether the kubelet's runtime tears down leaks whose result is in libcni's cache.

    If plugins are in files of their own, no result names them, and the DEL of one may go by the
    address.
    """
    runtimes = of_the_kubelet(snapshot)
    if any(network.plugin_files for network in known_or(snapshot.networks, ())):
        return False
    return bool(runtimes) and all(runtime.deletes_at_start for runtime in runtimes)


def contradiction(snapshot: Snapshot) -> str:
    """Say who contradicts whom about which runtime it is. Anyone can name a process kubelet."""
    processes, reported = known_or(snapshot.processes, None), _reported(snapshot)
    if not processes or not processes.runtime:
        return ""
    if processes.runtime_disputed:
        return f"processes named kubelet name different runtimes, such as {processes.runtime}"
    if not reported or (processes.runtime == DOCKER) == _is_docker(reported):
        return ""
    return f"the kubelet names {processes.runtime} as runtime, and its Node names {reported}"


def not_asked(snapshot: Snapshot) -> str:
    """Return the runtime of the kubelet if it is known and was not asked; else empty."""
    if contradiction(snapshot) or of_the_kubelet(snapshot):
        return ""
    return _named(snapshot) or _reported(snapshot)


def is_named(snapshot: Snapshot) -> bool:
    """Return whether anything shows that the kubelet's runtime was asked, other than its list itself."""
    if of_the_kubelet(snapshot):
        return True
    # A checkpoint directory is of docker, and may be a remnant: it counts where the kubelet cannot be asked.
    if not _any_docker(asked(snapshot)):
        return False
    processes = known_or(snapshot.processes, None)
    return isinstance(snapshot.checkpoints, Known) and not (
        processes and processes.runtime is not None
    )


def _named(snapshot: Snapshot) -> str:
    """Return what the kubelet names: `docker` or an endpoint; empty: it names none, or is not known."""
    processes = known_or(snapshot.processes, None)
    return (processes.runtime if processes else None) or ""


def _reported(snapshot: Snapshot) -> str:
    node = known_or(snapshot.node, None)
    return node.runtime if node else ""
