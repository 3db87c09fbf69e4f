"""The operations of a cleaner on the node: each has an answer and a world after it, and may fail as well."""

from collections.abc import Callable, Hashable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from agent.cleanup.journal import RESERVATION, Entry, FileImage, Journal
from agent.model.brake import Brake
from agent.model.clocks import Moment
from agent.model.snapshot import (
    Address,
    Checkpoint,
    Container,
    Known,
    NetworkStore,
    Pod,
    ProcessStartTimes,
    Reservation,
    Unavailable,
)
from agent.sources.source_error import SourceError
from tests.proof.world import File, World, made, spent, without

START: Final = datetime(2026, 3, 26, 20, 0, tzinfo=UTC)
UPTIME: Final = timedelta(days=30)

Question = tuple[Any, ...]  # The name of the operation and its arguments
Answer = Hashable
Done = tuple[Answer, World]

MISSING: Final = FileNotFoundError(2, "No such file or directory")
TAKEN: Final = FileExistsError(17, "File exists")
BROKEN: Final = OSError(5, "Input/output error")
UNANSWERED: Final = SourceError("unavailable")  # An answer that is an exception is raised
NO_DIRECTORY: Final = Unavailable(
    "checkpoints", "none of these exists: the checkpoint directories", missing=True
)

UNAVAILABILITY: Final = "a source is unavailable"
FAILURE: Final = "the disk fails"


def perform(question: Question, world: World, who: str) -> Iterator[Done]:
    """Do one operation."""
    name, *of = question
    done = (
        (_READINGS[name](world, *of), world)
        if name in _READINGS
        else _CHANGES[name](world, who, *of)
    )
    yield done
    if name in _MAY_BE_UNAVAILABLE and world.may(UNAVAILABILITY):
        yield UNANSWERED, spent(world, UNAVAILABILITY)
    if name in _MAY_FAIL and world.may(FAILURE):
        yield BROKEN, spent(world, FAILURE)
        if name in _MAY_BE_LATE:
            yield BROKEN, spent(done[1], FAILURE)


_MAY_FAIL: Final = {"begin", "update", "remove", "put_back"}
_MAY_BE_LATE: Final = {
    "begin",
    "update",
}  # A disk that hangs: the write counts as failed, and is done
_RECHECK: Final = {
    "has_container",
    "has_record",
    "has_checkpoint",
    "holder_of",
    "is_mounted",
    "probe",
}
_MAY_BE_UNAVAILABLE: Final = _RECHECK | {
    "checkpoints", "containers", "records", "named_namespaces", "processes", "addresses", "brake",
}  # fmt: skip


# What the readings return. Equal parts of worlds have one and the same answer.


@cache
def _moment(clock: int, jumped: int) -> Moment:
    return Moment(START + timedelta(seconds=clock + jumped), UPTIME + timedelta(seconds=clock))


@cache
def _stores(files: tuple[File, ...], networks: tuple[str, ...]) -> tuple[NetworkStore, ...]:
    found = {
        name: tuple(_reservation(file) for file in files if file.network == name)
        for name in networks
    }
    return tuple(NetworkStore(name, Known(reserved)) for name, reserved in found.items())


@cache
def _reservation(file: File) -> Reservation:
    ifname, size = ("eth0", len(_bytes(file.content))) if file.content else ("", 0)
    return Reservation(
        file.network, file.ip, file.content, ifname, file.inode, size, _nanoseconds(file.mtime)
    )


@cache
def image(file: File) -> FileImage:
    content, mtime_ns = _bytes(file.content), _nanoseconds(file.mtime)
    return FileImage(RESERVATION, file.network, file.ip, content, 0o600, 0, 0, file.inode, mtime_ns)


def _bytes(content: str) -> bytes:
    return f"{content}\r\neth0".encode() if content else b""


def _nanoseconds(seconds: int) -> int:
    return (int(START.timestamp()) + seconds) * 10**9


@cache
def _checkpoints(some: tuple[tuple[str, str], ...]) -> tuple[Checkpoint, ...]:
    return tuple(Checkpoint(*checkpoint) for checkpoint in some)


@cache
def _containers(some: tuple[tuple[str, str, str], ...]) -> tuple[Container, ...]:
    return tuple(
        Container(id_, state, 0, pod, f"uid of {pod}", sandbox=True) for id_, state, pod in some
    )


@cache
def _start_times(kubelet: int, runtime: int, jumped: int, named: str | None) -> ProcessStartTimes:
    """The kernel records start times by the boot clock: when the wall clock is set, they move with it."""
    booted, kubelets, runtimes = (
        START + timedelta(seconds=jumped + at) for at in (0, kubelet, runtime)
    )
    return ProcessStartTimes(
        booted - UPTIME,
        "boot",
        kubelets,
        runtimes,
        runtime=named,
        containerd=runtimes,
        crio=runtimes,
    )


@cache
def _addresses(ips: tuple[str, ...]) -> tuple[Address, ...]:
    return (Address("10.244.1.1", 1, "systemd"), *(Address(ip, 7, "pause") for ip in ips))


@cache
def _pods(some: tuple[tuple[str, tuple[str, ...]], ...]) -> Known[tuple[Pod, ...]]:
    return Known(
        tuple(
            Pod(name, f"uid of {name}", "Running", host_network=False, deleting=False, ips=ips)
            for name, ips in some
        )
    )


_READINGS: Final[dict[str, Callable[..., Answer]]] = {
    # A snapshot. `records`: what the runtime's own records have of these sandboxes, more than its list.
    # `named_namespaces`: the sandboxes of which libcni's cache names the network namespace.
    "moment": lambda world: _moment(world.clock, world.jumped),
    "reservations": lambda world, networks: _stores(world.files, networks),
    "checkpoints": lambda world: (
        _checkpoints(
            tuple((sandbox.id, sandbox.pod) for sandbox in world.sandboxes if sandbox.checkpoint)
        )
        if world.directory
        else NO_DIRECTORY
    ),
    "containers": lambda world: _containers(
        tuple(
            (sandbox.id, sandbox.container, sandbox.pod)
            for sandbox in world.sandboxes
            if sandbox.listed
        )
    ),
    "records": lambda world, ids: _containers(
        tuple(
            (sandbox.id, "being created", sandbox.pod)
            for sandbox in world.sandboxes
            if sandbox.recorded(ids)
        )
    ),
    "named_namespaces": lambda world: tuple(
        sorted({pinned.named for pinned in world.pinned if pinned.named})
    ),
    "processes": lambda world: _start_times(
        world.kubelet_started, world.runtime_started, world.jumped, world.runtime
    ),
    "addresses": lambda world: _addresses(
        tuple(ip for sandbox in world.sandboxes for ip in sandbox.active)
    ),
    "brake": lambda world: (Brake("kube-system/nodeleak-brake", on=True),) if world.brake else (),
    "pods": lambda world: _pods(
        tuple((box.pod, box.status) for box in world.sandboxes if box.status)
    ),
    # The recheck.
    "has_container": lambda world, id_: any(
        sandbox.id == id_ and sandbox.listed for sandbox in world.sandboxes
    ),
    "has_record": lambda world, id_: any(sandbox.recorded((id_,)) for sandbox in world.sandboxes),
    "has_checkpoint": lambda world, id_: any(
        sandbox.id == id_ and sandbox.checkpoint for sandbox in world.sandboxes
    ),
    "holder_of": lambda world, ips: any(
        set(ips).intersection(sandbox.active) for sandbox in world.sandboxes
    ),
    "probe": lambda world, ips: tuple(
        ip for ip in ips if any(pinned.ip == ip for pinned in world.pinned)
    ),
    "is_mounted": lambda world, id_: (
        id_ != "" and any(pinned.named == id_ for pinned in world.pinned)
    ),
    # Files and the journal. `number`: entries are named by time, and no two begin in the same microsecond.
    "read": lambda world, network, ip: (file := world.file(ip, network)) and image(file),
    "addresses_of": lambda world, id_, network: tuple(
        file.ip for file in world.files if (file.content, file.network) == (id_, network)
    ),
    "journal": lambda world: Journal(world.journal),
    "number": lambda world: len(world.journal),
}


def remove(world: World, _who: str, network: str, name: str) -> Done:
    file = world.file(name, network)
    if file is None:
        return MISSING, world
    found = (file.network, file.ip, _bytes(file.content))
    noted = any(
        (image.network, image.name, image.content) == found
        for entry in world.journal
        for image in entry.files
    )
    lost = world.lost if noted else f"{file.ip} of {file.content[:2] or 'nobody'}"
    defied = file.ip if Journal(world.journal).halting_entries() else world.defied
    overrun = dict.fromkeys((*world.overrun, file.content)) if world.brake else ()
    return None, without(world, [file])._replace(lost=lost, defied=defied, overrun=tuple(overrun))


def put_back(world: World, _who: str, what: FileImage) -> Done:
    if world.file(what.name, what.network) is not None:
        return TAKEN, world
    content = what.content.decode().partition("\r\n")[0]
    mtime = what.mtime_ns // 10**9 - int(START.timestamp())
    return None, made(world, what.name, content, what.network, mtime)


def begin(world: World, _who: str, entry: Entry) -> Done:
    if world.room:
        return None, world._replace(journal=(*world.journal, entry), room=world.room - 1)
    return BROKEN, world


def begin_anyway(world: World, who: str, entry: Entry) -> Done:
    """Drop the oldest entry for it, if there is no room. Only a mutation does that."""
    oldest, *others = (*world.journal, entry)
    return (
        begin(world, who, entry)
        if world.room
        else (None, world._replace(journal=tuple(others), dropped=oldest.name))
    )


_CHANGES: Final[dict[str, Callable[..., Done]]] = {
    # If another process holds the lock, the wait may end at any time.
    "lock": lambda world, who: (False, world) if world.lock else (True, world._replace(lock=who)),
    "exclusive": lambda world, who: (
        (False, world) if world.exclusive else (True, world._replace(exclusive=who))
    ),
    "update": lambda world, _, entry: (
        None,
        world._replace(
            journal=tuple(entry if known.name == entry.name else known for known in world.journal)
        ),
    ),
    "wait": lambda world, _, seconds: (None, world._replace(clock=world.clock + int(seconds))),
    "unlock": lambda world, _: (None, world._replace(lock="")),
    "leave": lambda world, _: (None, world._replace(exclusive="")),
    **{one.__name__: one for one in (remove, put_back, begin, begin_anyway)},
}
