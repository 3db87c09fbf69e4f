"""Everything on the node except the cleaners. An actor yields what it may do next, one operation at a time.

The kubelet follows dockershim's order: container, checkpoint, start, ADD; then DEL, stop, remove, checkpoint.
"""

from collections.abc import Callable, Iterator
from itertools import chain, combinations
from typing import Final

from agent.model.runtime import DOCKER
from tests.proof.world import Pinned, Sandbox, World, changed, made, spent, without_sandbox

OTHER: Final = "unix:///run/containerd/containerd.sock"
WIPE: Final = "the runtime is wiped"
KILL: Final = "the runtime is killed"
MIGRATION: Final = "the kubelet changes its runtime"

Move = tuple[str, World]
Actor = Callable[[World], Iterator[Move]]


def setting_up(world: World) -> Iterator[Move]:
    """RunPodSandbox, with host-local's ADD."""
    for index, sandbox in enumerate(world.sandboxes):
        match sandbox.setup:
            case "new" if sandbox.asked:
                yield (
                    f"{sandbox.pod}: docker create",
                    changed(world, index, setup="created", container="created"),
                )
            case "created":
                yield (
                    f"{sandbox.pod}: the checkpoint is written",
                    changed(world, index, setup="noted", checkpoint=True),
                )
            case "noted":
                yield (
                    f"{sandbox.pod}: docker start",
                    changed(world, index, setup="started", container="running"),
                )
            case "started" | "writing":
                yield from adding(world, index)
            case "reserved" if sandbox.container != "running":
                yield (
                    f"{sandbox.pod}: ADD finds no namespace to configure",
                    changed(world, index, setup="failed"),
                )
            case "reserved":
                configured = changed(world, index, setup="ready", configured=sandbox.ips)
                yield f"{sandbox.pod}: ADD configures {', '.join(sandbox.ips)}", configured
            case _:
                pass


def adding(world: World, index: int) -> Iterator[Move]:
    """host-local's part of ADD: one address of each family, each under its lock."""
    sandbox = world.sandboxes[index]
    if sandbox.setup == "started" and not world.lock:
        family = (sandbox.families or world.families)[len(sandbox.ips)]
        if free := [ip for ip in family if world.file(ip, sandbox.network) is None]:
            locked = made(world, free[0], "", sandbox.network)._replace(lock=sandbox.id)
            writing = changed(locked, index, setup="writing", ips=(*sandbox.ips, free[0]))
            yield f"{sandbox.pod}: ADD locks and creates {free[0]}", writing
        else:
            failed = changed(without_sandbox(world, sandbox.id), index, setup="failed", ips=())
            yield f"{sandbox.pod}: ADD fails, the range is full", failed
    elif sandbox.setup == "writing":
        more = len(sandbox.ips) < len(sandbox.families or world.families)
        created = world.file(sandbox.ips[-1], sandbox.network)
        files = (
            file._replace(content=sandbox.id) if file == created else file for file in world.files
        )
        written = world._replace(files=tuple(sorted(files)), lock="")
        after = changed(written, index, setup="started" if more else "reserved")
        yield f"{sandbox.pod}: ADD writes {sandbox.ips[-1]} and unlocks", after


def host_local_dies(world: World) -> Iterator[Move]:
    """Between creating the file and writing it. An empty file remains, and the kernel releases the lock."""
    for index, sandbox in enumerate(world.sandboxes):
        if sandbox.setup == "writing" and world.may("host-local dies"):
            died = changed(world, index, setup="failed", ips=sandbox.ips[:-1])._replace(lock="")
            yield (
                f"{sandbox.pod}: host-local dies before it writes {sandbox.ips[-1]}",
                spent(died, "host-local dies"),
            )


def tearing_down(world: World) -> Iterator[Move]:
    """StopPodSandbox and RemovePodSandbox, for deleted pods and for sandboxes that look dead to the kubelet."""
    for index, sandbox in enumerate(world.sandboxes):
        if not sandbox.known or not (
            sandbox.orphaned or sandbox.setup in {"ready", "failed", "killed"}
        ):
            continue
        match sandbox.teardown:
            case "" if (
                sandbox.leaves
                or sandbox.setup != "ready"
                or not sandbox.listed
                or sandbox.container == "exited"
            ):
                if not world.ready:
                    untorn = changed(world, index, teardown="untorn")
                    yield f"{sandbox.pod}: no DEL, the kubelet has no pod CIDR", untorn
                elif not world.lock:
                    torn = changed(
                        without_sandbox(world, sandbox.id), index, teardown="torn", ips=()
                    )
                    yield f"{sandbox.pod}: DEL", torn
            case "torn" | "untorn":
                yield _stop(world, index, sandbox)
            case "stopped":
                yield (
                    f"{sandbox.pod}: docker rm",
                    changed(world, index, teardown="removed", container=""),
                )
            case "removed":
                yield (
                    f"{sandbox.pod}: the checkpoint is removed",
                    changed(world, index, teardown="", checkpoint=False),
                )
            case _:
                pass


def other_runtime(world: World) -> Iterator[Move]:
    """Pods of another runtime come and go; and the kubelet starts again with that runtime."""
    for index, sandbox in enumerate(world.sandboxes):
        if sandbox.asked:
            continue
        if sandbox.setup == "new" and world.runtime != DOCKER:
            yield (
                f"{sandbox.pod}: containerd run",
                changed(world, index, setup="started", container="running"),
            )
        elif sandbox.setup == "ready" and sandbox.leaves and not world.lock:
            torn = without_sandbox(world, sandbox.id)
            ended = changed(torn, index, setup="failed", container="", ips=(), configured=())
            yield f"{sandbox.pod}: DEL by containerd, and its end", ended
    if world.may(MIGRATION):
        yield (
            MIGRATION,
            spent(world, MIGRATION)._replace(runtime=OTHER, kubelet_started=world.clock),
        )


def _stop(world: World, index: int, sandbox: Sandbox) -> Move:
    """Without a container the kubelet drops the checkpoint, even if DEL did not run: this is the known leak."""
    if not sandbox.listed:
        dropped = changed(world, index, teardown="", checkpoint=False)
        return f"{sandbox.pod}: docker knows no such container, the checkpoint is dropped", dropped
    after = "stopped" if sandbox.teardown == "torn" else ""
    return f"{sandbox.pod}: docker stop", changed(
        world, index, teardown=after, container="exited", configured=()
    )


def kubelet_restarts(world: World) -> Iterator[Move]:
    """It forgets what it was doing, its plugins die with it, and it has no pod CIDR for a while."""
    if world.may("kubelet restarts"):
        after = spent(world, "kubelet restarts")._replace(ready=False, kubelet_started=world.clock)
        for index, sandbox in enumerate(world.sandboxes):
            if sandbox.setup not in {"new", "ready", "failed"}:
                after = _killed(after, index, sandbox)
            after = changed(after, index, teardown="")
        yield "the kubelet restarts", after
    if not world.ready:
        yield "the kubelet learns its pod CIDR", world._replace(ready=True)


def _killed(world: World, index: int, sandbox: Sandbox) -> World:
    if world.may("plugins survive the kubelet") and sandbox.setup in {
        "started",
        "writing",
        "reserved",
    }:
        return changed(world, index, orphaned=True)
    if sandbox.setup == "writing":
        world = world._replace(lock="")
        sandbox = sandbox._replace(ips=sandbox.ips[:-1])
    return changed(world, index, setup="killed", ips=sandbox.ips)


def operator_removes(world: World) -> Iterator[Move]:
    """`docker rm -f` of a running pod."""
    for index, sandbox in enumerate(world.sandboxes):
        if (
            sandbox.setup == "ready"
            and sandbox.listed
            and sandbox.container == "running"
            and world.may("docker rm -f")
        ):
            removed = spent(changed(world, index, container=""), "docker rm -f")
            yield f"{sandbox.pod}: an operator's docker rm -f", removed


def runtime_is_wiped(world: World) -> Iterator[Move]:
    """Its records and those of the kubelet are deleted, and its processes end; mounted network namespaces stay.

    libcni's cache names those of containerd and CRI-O. kubenet has no cache.
    """
    if world.may(WIPE):
        after = spent(world, WIPE)
        for index, sandbox in enumerate(world.sandboxes):
            if sandbox.setup == "ready":
                named = sandbox.id if sandbox.record else ""
                held = (Pinned(ip, named) for ip in sandbox.configured if ip in sandbox.ips)
                after = after._replace(pinned=(*after.pinned, *held))
                after = changed(
                    after, index, container="", record=False, checkpoint=False, configured=()
                )
        yield WIPE, after


def namespaces_are_unmounted(world: World) -> Iterator[Move]:
    if world.pinned:
        yield "the network namespaces are unmounted", world._replace(pinned=())


def late_del(world: World) -> Iterator[Move]:
    """A DEL of a sandbox that is gone, by a retry or a script."""
    if world.may("late DEL") and not world.lock:
        contained = {sandbox.id for sandbox in world.sandboxes if sandbox.container}
        for gone in sorted({file.content for file in world.files} - contained - {""}):
            after = spent(without_sandbox(world, gone), "late DEL")
            for index, sandbox in enumerate(world.sandboxes):
                if sandbox.id == gone:
                    after = changed(after, index, ips=())
            yield f"a late DEL of {gone[:2]}", after


def docker_forgets(world: World) -> Iterator[Move]:
    """docker restarts, or loses containers without a restart. Its list lacks some or all of them for a while."""
    there = [index for index, sandbox in enumerate(world.sandboxes) if sandbox.listed]
    for why, started in (
        ("docker restarts", world.clock),
        ("docker forgets", world.runtime_started),
    ):
        if world.may(why):
            for some in chain.from_iterable(
                combinations(there, many) for many in range(1, len(there) + 1)
            ):
                after = spent(world, why)._replace(runtime_started=started)
                for index in some:
                    after = changed(after, index, hidden=True)
                yield (
                    f"{why}, without {', '.join(world.sandboxes[index].pod for index in some)}",
                    after,
                )
    if any(sandbox.hidden and sandbox.container for sandbox in world.sandboxes) and world.may(
        "docker remembers"
    ):
        after = spent(world, "docker remembers")
        for index in range(len(world.sandboxes)):
            after = changed(after, index, hidden=False)
        yield "docker lists everything again", after


def status_follows(world: World) -> Iterator[Move]:
    """The API server learns a pod's addresses, and that they are gone, some time later."""
    for index, sandbox in enumerate(world.sandboxes):
        now = sandbox.active
        if sandbox.status != now:
            learned = changed(world, index, status=now)
            yield f"{sandbox.pod}: the API server learns of {', '.join(now) or 'its end'}", learned


def time_passes(world: World) -> Iterator[Move]:
    """No ADD takes ten minutes: the kubelet limits a plugin to 220 s."""
    adding = any(sandbox.setup in {"started", "writing", "reserved"} for sandbox in world.sandboxes)
    for rare, clock, jumped in (
        ("ten minutes pass", 600, 0),
        ("the wall clock is set forward", 0, 3600),
        ("the wall clock is set back", 0, -3600),
    ):
        if world.may(rare) and not (clock and adding):
            yield (
                rare,
                spent(world, rare)._replace(
                    clock=world.clock + clock, jumped=world.jumped + jumped
                ),
            )


RARE: Final[dict[Actor, frozenset[str]]] = {
    host_local_dies: frozenset({"host-local dies"}),
    kubelet_restarts: frozenset({"kubelet restarts"}),
    operator_removes: frozenset({"docker rm -f"}),
    runtime_is_wiped: frozenset({WIPE}),
    namespaces_are_unmounted: frozenset({WIPE, KILL}),
    late_del: frozenset({"late DEL"}),
    docker_forgets: frozenset({"docker restarts", "docker forgets"}),
    time_passes: frozenset(
        {"ten minutes pass", "the wall clock is set forward", "the wall clock is set back"}
    ),
}
"""Actors that do nothing unless one of these events may still happen."""
ALL_ACTORS: Final[tuple[Actor, ...]] = (setting_up, tearing_down, other_runtime, *RARE)


def moving(actors: tuple[Actor, ...], start: World) -> tuple[Actor, ...]:
    """Return the actors that can do anything from this start."""
    return tuple(actor for actor in actors if actor not in RARE or any(map(start.may, RARE[actor])))
