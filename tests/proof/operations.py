"""The operations of a cleaner on the node: one function each, which yields an answer and the world after it.

An operation with several possible results, such as taking a lock, yields several answers.
"""

from collections.abc import Callable, Hashable, Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final

from agent.cleanup.journal import RESERVATION, Entry, FileImage, Journal
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
from agent.sources.collector import Moment
from agent.sources.source_error import SourceError
from tests.proof.world import File, World, made, spent, without

START: Final = datetime(2026, 3, 26, 20, 0, tzinfo=UTC)
UPTIME: Final = timedelta(days=30)

Question = tuple[Any, ...]
"""The name of the operation and its arguments."""
Answer = Hashable
Answers = Iterator[tuple[Answer, World]]


MISSING: Final = FileNotFoundError(2, "No such file or directory")
TAKEN: Final = FileExistsError(17, "File exists")
BROKEN: Final = OSError(5, "Input/output error")
UNANSWERED: Final = SourceError("unavailable")
"""An answer that is an exception is raised."""
NO_DIRECTORY: Final = Unavailable("checkpoints", "none of these exists: the checkpoint directories", missing=True)

UNAVAILABILITY: Final = "a source is unavailable"
FAILURE: Final = "the disk fails"


def perform(question: Question, world: World, who: str) -> Answers:
    """Do one operation."""
    name, *of = question
    yield from _OPERATIONS[name](world, who, *of)
    if name in _MAY_BE_UNAVAILABLE and world.may(UNAVAILABILITY):
        yield UNANSWERED, spent(world, UNAVAILABILITY)
    if name in _MAY_FAIL and world.may(FAILURE):
        yield BROKEN, spent(world, FAILURE)
        if name in _MAY_BE_LATE:
            yield from ((BROKEN, spent(after, FAILURE)) for _, after in _OPERATIONS[name](world, who, *of))


_MAY_FAIL: Final = {"begin", "update", "remove", "put_back"}
_MAY_BE_LATE: Final = {"begin", "update"}
"""A disk that hangs: the write counts as failed, and is done."""
_MAY_BE_UNAVAILABLE: Final = {
    "checkpoints",
    "containers",
    "records",
    "named_namespaces",
    "processes",
    "addresses",
    *("has_container", "has_record", "has_checkpoint", "holder_of", "is_mounted", "probe"),
}


def moment(world: World, _who: str) -> Answers:
    yield Moment(START + timedelta(seconds=world.clock + world.jumped), UPTIME + timedelta(seconds=world.clock)), world


def wait(world: World, _who: str, seconds: float) -> Answers:
    yield None, world._replace(clock=world.clock + int(seconds))


# What a snapshot reads.


def reservations(world: World, _who: str, networks: tuple[str, ...]) -> Answers:
    yield _stores(world.files, networks), world


@cache
def _stores(files: tuple[File, ...], networks: tuple[str, ...]) -> tuple[NetworkStore, ...]:
    found = {name: tuple(_reservation(file) for file in files if file.network == name) for name in networks}
    return tuple(NetworkStore(name, Known(reserved)) for name, reserved in found.items())


@cache
def _reservation(file: File) -> Reservation:
    ifname, size = ("eth0", len(_bytes(file.content))) if file.content else ("", 0)
    return Reservation(file.network, file.ip, file.content, ifname, file.inode, size, _nanoseconds(file.mtime))


@cache
def image(file: File) -> FileImage:
    return FileImage(
        RESERVATION, file.network, file.ip, _bytes(file.content), 0o600, 0, 0, file.inode, _nanoseconds(file.mtime)
    )  # fmt: skip


def _bytes(content: str) -> bytes:
    return f"{content}\r\neth0".encode() if content else b""


def _nanoseconds(seconds: int) -> int:
    return (int(START.timestamp()) + seconds) * 10**9


def checkpoints(world: World, _who: str) -> Answers:
    found = tuple((sandbox.id, sandbox.pod) for sandbox in world.sandboxes if sandbox.checkpoint)
    yield (_checkpoints(found) if world.directory else NO_DIRECTORY), world


@cache
def _checkpoints(some: tuple[tuple[str, str], ...]) -> tuple[Checkpoint, ...]:
    return tuple(Checkpoint(*checkpoint) for checkpoint in some)


def containers(world: World, _who: str) -> Answers:
    listed = tuple((sandbox.id, sandbox.container, sandbox.pod) for sandbox in world.sandboxes if sandbox.listed)
    yield _containers(listed), world


@cache
def _containers(some: tuple[tuple[str, str, str], ...]) -> tuple[Container, ...]:
    return tuple(Container(id_, state, 0, pod, f"uid of {pod}", sandbox=True) for id_, state, pod in some)


def records(world: World, _who: str, container_ids: tuple[str, ...]) -> Answers:
    """What the runtime's own records have of these sandboxes: more than its list."""
    recorded = (box for box in world.sandboxes if box.asked and box.record and box.id in container_ids)
    yield _containers(tuple((sandbox.id, "being created", sandbox.pod) for sandbox in recorded)), world


def named_namespaces(world: World, _who: str) -> Answers:
    """The sandboxes of which libcni's cache names the network namespace."""
    yield tuple(sorted({namespace.named for namespace in world.pinned if namespace.named})), world


def processes(world: World, _who: str) -> Answers:
    kubelet, runtime = world.kubelet_started + world.jumped, world.runtime_started + world.jumped
    yield _start_times(kubelet, runtime, world.jumped, world.runtime), world


@cache
def _start_times(kubelet: int, runtime: int, jumped: int, named: str | None) -> ProcessStartTimes:
    """The kernel records start times by the boot clock: when the wall clock is set, they move with it."""
    booted = START - UPTIME + timedelta(seconds=jumped)
    kubelets, runtimes = START + timedelta(seconds=kubelet), START + timedelta(seconds=runtime)
    return ProcessStartTimes(booted, "boot", kubelets, runtimes, runtime=named, containerd=runtimes, crio=runtimes)


def addresses(world: World, _who: str) -> Answers:
    yield _addresses(tuple(ip for sandbox in world.sandboxes for ip in sandbox.active)), world


@cache
def _addresses(ips: tuple[str, ...]) -> tuple[Address, ...]:
    return (Address("10.244.1.1", 1, "systemd"), *(Address(ip, 7, "pause") for ip in ips))


def pods(world: World, _who: str) -> Answers:
    yield _pods(tuple((sandbox.pod, sandbox.status) for sandbox in world.sandboxes if sandbox.status)), world


@cache
def _pods(some: tuple[tuple[str, tuple[str, ...]], ...]) -> Known[tuple[Pod, ...]]:
    return Known(tuple(Pod(name, name, "Running", host_network=False, deleting=False, ips=ips) for name, ips in some))


# The recheck.


def has_container(world: World, _who: str, container_id: str) -> Answers:
    yield any(sandbox.id == container_id and sandbox.listed for sandbox in world.sandboxes), world


def has_record(world: World, _who: str, container_id: str) -> Answers:
    yield any(sandbox.id == container_id and sandbox.asked and sandbox.record for sandbox in world.sandboxes), world


def has_checkpoint(world: World, _who: str, container_id: str) -> Answers:
    yield any(sandbox.id == container_id and sandbox.checkpoint for sandbox in world.sandboxes), world


def holder_of(world: World, _who: str, ips: tuple[str, ...]) -> Answers:
    yield any(set(ips).intersection(sandbox.active) for sandbox in world.sandboxes), world


def probe(world: World, _who: str, ips: tuple[str, ...]) -> Answers:
    yield tuple(ip for ip in ips if any(namespace.ip == ip for namespace in world.pinned)), world


def is_mounted(world: World, _who: str, container_id: str) -> Answers:
    yield container_id != "" and any(namespace.named == container_id for namespace in world.pinned), world


# File operations.


def read(world: World, _who: str, network: str, ip: str) -> Answers:
    file = world.file(ip, network)
    yield (None if file is None else image(file)), world


def lock(world: World, who: str) -> Answers:
    """If another process holds the lock, the wait may end at any time."""
    if world.lock:
        yield False, world
    else:
        yield True, world._replace(lock=who)


def unlock(world: World, _who: str) -> Answers:
    yield None, world._replace(lock="")


def remove(world: World, _who: str, network: str, name: str) -> Answers:
    file = world.file(name, network)
    if file is None:
        yield MISSING, world
        return
    found = (file.network, file.ip, _bytes(file.content))
    noted = any((image.network, image.name, image.content) == found for entry in world.journal for image in entry.files)
    lost = world.lost if noted else f"{file.ip} of {file.content[:2] or 'nobody'}"
    yield None, without(world, [file])._replace(lost=lost)


def put_back(world: World, _who: str, what: FileImage) -> Answers:
    if world.file(what.name, what.network) is not None:
        yield TAKEN, world
        return
    content = what.content.decode().partition("\r\n")[0]
    mtime = what.mtime_ns // 10**9 - int(START.timestamp())
    yield None, made(world, what.name, content, what.network, mtime)


def addresses_of(world: World, _who: str, container_id: str, network: str) -> Answers:
    yield tuple(file.ip for file in world.files if (file.content, file.network) == (container_id, network)), world


# The journal and the cleaner's lock.


def journal(world: World, _who: str) -> Answers:
    yield Journal(world.journal), world


def number(world: World, _who: str) -> Answers:
    """Entries are named by time, and no two begin in the same microsecond."""
    yield len(world.journal), world


def exclusive(world: World, who: str) -> Answers:
    if world.exclusive:
        yield False, world
    else:
        yield True, world._replace(exclusive=who)


def leave(world: World, _who: str) -> Answers:
    yield None, world._replace(exclusive="")


def begin(world: World, _who: str, entry: Entry) -> Answers:
    if world.room:
        yield None, world._replace(journal=(*world.journal, entry), room=world.room - 1)
    else:
        yield BROKEN, world


def begin_anyway(world: World, _who: str, entry: Entry) -> Answers:
    """Drop the oldest entry for it, if there is no room. Only a mutation does that."""
    oldest, *others = (*world.journal, entry)
    if world.room:
        yield from begin(world, _who, entry)
    else:
        yield None, world._replace(journal=tuple(others), dropped=oldest.name)


def update(world: World, _who: str, entry: Entry) -> Answers:
    yield None, world._replace(journal=tuple(entry if known.name == entry.name else known for known in world.journal))


_OPERATIONS: Final[dict[str, Callable[..., Answers]]] = {
    operation.__name__: operation
    for operation in (
        moment, wait, reservations, checkpoints, containers, records, named_namespaces, processes, addresses, pods,
        has_container, has_record, has_checkpoint, holder_of, is_mounted, probe,
        read, lock, unlock, remove, put_back, addresses_of,
        journal, number, exclusive, leave, begin, begin_anyway, update,
    )
}  # fmt: skip
