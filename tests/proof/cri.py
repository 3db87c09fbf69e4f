"""containerd and CRI-O instead of docker: what happens to sandboxes that the kubelet makes through CRI.

The order is: a record, the network namespace, ADD, the pause process; then its end and DEL (CRI-O: DEL and its end).
The record goes last. The list has a sandbox only from its pause process on, and an old containerd has no record before
that either.
"""

from collections.abc import Iterator
from itertools import chain, combinations
from typing import Final

from tests.proof import actors
from tests.proof.actors import KILL, RARE, Actor, Move, adding
from tests.proof.world import Pinned, Sandbox, World, changed, spent, without

DEADLINE: Final = "the deadline of ADD passes"
SURVIVE: Final = "plugins survive the runtime"


def setting_up(world: World) -> Iterator[Move]:
    """RunPodSandbox."""
    for index, sandbox in enumerate(world.sandboxes):
        match sandbox.setup:
            case "new":
                begun = changed(
                    world, index, setup="started", record=world.record_first, mounted=True
                )
                yield (
                    f"{sandbox.pod}: {'its record' if world.record_first else 'its network namespace'}",
                    begun,
                )
            case "started" | "writing":
                yield from adding(world, index)
            case "reserved" if sandbox.orphaned:
                # Nobody waits for it: its address stays in the namespace if that stays mounted.
                ended = changed(world, index, setup="killed" if sandbox.mounted else "failed")
                held = map(Pinned, sandbox.ips if sandbox.mounted else ())
                yield (
                    f"{sandbox.pod}: ADD ends, and nobody waits",
                    ended._replace(pinned=(*world.pinned, *held)),
                )
            case "reserved":
                configured = changed(world, index, setup="configured", configured=sandbox.ips)
                yield f"{sandbox.pod}: ADD configures {', '.join(sandbox.ips)}", configured
            case "configured":
                ready = changed(world, index, setup="ready", container="running", record=True)
                yield f"{sandbox.pod}: its pause process runs", ready
            case _:
                pass


def tearing_down(world: World) -> Iterator[Move]:
    """StopPodSandbox and RemovePodSandbox, and the same after an ADD that failed."""
    for index, sandbox in enumerate(world.sandboxes):
        match sandbox.teardown:
            case "" if sandbox.setup == "ready" and sandbox.leaves and sandbox.listed:
                stopped = changed(
                    world, index, teardown="stopped", container="exited", configured=()
                )
                yield f"{sandbox.pod}: its processes are stopped", stopped
                yield from _del(world, index, sandbox)
            case "" if (
                killed := sandbox.orphaned or sandbox.setup == "killed"
            ) or sandbox.setup == "failed":
                # Killed during ADD, it has no result of it, and many versions skip DEL then: this is a leak.
                if killed and sandbox.mounted:
                    yield (
                        f"{sandbox.pod}: no DEL, and its record is removed",
                        changed(world, index, teardown="gone", record=False),
                    )
                yield from _del(world, index, sandbox)
            case "stopped":
                yield from _del(world, index, sandbox)
            case "torn" if sandbox.container:
                yield f"{sandbox.pod}: it leaves the list", changed(world, index, container="")
            case "torn":
                yield (
                    f"{sandbox.pod}: its record is removed",
                    changed(world, index, teardown="gone", record=False),
                )
            case _:
                pass


def _del(world: World, index: int, sandbox: Sandbox) -> Iterator[Move]:
    """It ends the network namespace as well."""
    if world.lock:
        return
    mine = [file for file in world.files if file.content == sandbox.id]
    left = sandbox.ips if sandbox.orphaned else ()  # its ADD counts them
    held = tuple(
        namespace for namespace in world.pinned if namespace.ip not in {file.ip for file in mine}
    )
    torn = changed(
        without(world, mine), index, teardown="torn", ips=left, configured=(), mounted=False
    )
    yield f"{sandbox.pod}: DEL", torn._replace(pinned=held)


def deadline_passes(world: World) -> Iterator[Move]:
    """The runtime kills the plugin that it has started, and gives up. A plugin that this one has started continues."""
    for index, sandbox in enumerate(world.sandboxes):
        if world.may(DEADLINE) and not sandbox.orphaned:
            after = spent(world, DEADLINE)
            if sandbox.setup in {"started", "writing"}:
                continues = changed(after, index, orphaned=True, mounted=False)
                yield f"{sandbox.pod}: {DEADLINE}, its host-local continues", continues
            elif sandbox.setup in {"reserved", "configured"}:
                failed = changed(after, index, setup="failed", configured=(), mounted=False)
                yield f"{sandbox.pod}: {DEADLINE}", failed


def runtime_is_killed(world: World) -> Iterator[Move]:
    """It starts again at once, and may fail to load some of the sandboxes that run."""
    if not world.may(KILL):
        return
    after = spent(world, KILL)._replace(runtime_started=world.clock)
    for index, sandbox in enumerate(world.sandboxes):
        if (
            sandbox.setup in {"started", "writing", "reserved", "configured"}
            and not sandbox.orphaned
        ):
            after = _killed(after, index, sandbox)
    there = [
        index
        for index, sandbox in enumerate(after.sandboxes)
        if sandbox.setup == "ready" and sandbox.listed
    ]
    for not_loaded in chain.from_iterable(
        combinations(there, many) for many in range(len(there) + 1)
    ):
        loaded = after
        for index in not_loaded:
            loaded = changed(loaded, index, hidden=True)
        names = ", ".join(world.sandboxes[index].pod for index in not_loaded)
        yield f"{KILL} and starts again{f', without {names}' if names else ''}", loaded


def _killed(world: World, index: int, sandbox: Sandbox) -> World:
    """What was configured stays in the network namespace. libcni's cache does not name it yet."""
    if world.may(SURVIVE) and sandbox.setup != "configured":
        return changed(world, index, orphaned=True)
    ips = sandbox.ips
    if sandbox.setup == "writing":
        world, ips = world._replace(lock=""), ips[:-1]
    held = (*world.pinned, *map(Pinned, sandbox.configured))
    return changed(world._replace(pinned=held), index, setup="killed", ips=ips, configured=())


CRI_ACTORS: Final[tuple[Actor, ...]] = (
    setting_up,
    tearing_down,
    deadline_passes,
    runtime_is_killed,
    actors.host_local_dies,
    actors.runtime_is_wiped,
    actors.namespaces_are_unmounted,
    actors.time_passes,
)
RARE.update({deadline_passes: frozenset({DEADLINE}), runtime_is_killed: frozenset({KILL})})
