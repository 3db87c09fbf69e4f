"""The node in memory: one hashable value that every actor changes one operation at a time.

Nothing here is agent code: it models runtimes, the kubelet's checkpoints, namespaces, host-local's directory and locks.
"""

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from agent.cleanup.journal import Entry

NETWORK = "kubenet"
LONG_AGO = -7200  # Seconds, relative to the start of the model


class Sandbox(NamedTuple):
    """One pod's sandbox: its true state, and how far the kubelet is with it."""

    id: str
    pod: str
    leaves: bool = True  # Its pod may be deleted
    container: str = ""  # Its true state: created, running, exited; empty: it does not exist
    hidden: bool = False  # Its runtime has the container and does not list it
    record: bool = False
    """containerd or CRI-O has its record: before ADD, if the runtime records first, and until after DEL."""
    checkpoint: bool = False
    ips: tuple[str, ...] = ()  # Its addresses, from when ADD creates the file until DEL
    configured: tuple[str, ...] = ()  # The addresses in its namespace, until its process ends
    setup: str = (
        "new"  # new, created, noted, started, writing, reserved, configured, ready; failed, killed
    )
    orphaned: bool = (
        False  # Its ADD continues although the kubelet or the runtime that started it is gone
    )
    mounted: bool = False  # Its network namespace stays mounted if nobody ends it in an orderly way
    teardown: str = (
        ""  # torn, untorn, stopped, removed, gone; empty: not begun, or to be begun again
    )
    status: tuple[str, ...] = ()  # The addresses of its pod according to the API server, which lags
    network: str = NETWORK
    families: tuple[tuple[str, ...], ...] = ()
    """What ADD allocates from for this sandbox, if not the default: one address of each family."""
    asked: bool = (
        True  # Its container belongs to the runtime that the agent asks, not to another one
    )
    shown: bool = (
        True  # Its addresses are on an interface. gVisor and KubeVirt's bridges take them off.
    )

    @property
    def exists(self) -> bool:
        being_made = (
            self.setup in {"started", "writing", "reserved", "configured"} and not self.orphaned
        )
        return self.container in {"created", "running"} or being_made

    @property
    def listed(self) -> bool:
        return self.asked and bool(self.container) and not self.hidden

    def recorded(self, ids: Iterable[str]) -> bool:
        """Whether its runtime has a record of it, and it is one of these."""
        return self.asked and self.record and self.id in ids

    @property
    def active(self) -> tuple[str, ...]:
        """The addresses that one of its processes has configured."""
        return self.configured if self.container == "running" and self.shown else ()

    @property
    def known(self) -> bool:
        """The kubelet still knows it."""
        return self.checkpoint or self.listed


class File(NamedTuple):
    """A reservation in host-local's directory."""

    ip: str
    content: str
    inode: int
    mtime: int
    network: str = NETWORK


class Pinned(NamedTuple):
    """An address in a network namespace that is mounted, and that no process is in."""

    ip: str
    named: str = ""  # The sandbox that it is of according to libcni's cache; empty: the cache does not name it


class World(NamedTuple):
    sandboxes: tuple[Sandbox, ...]
    files: tuple[File, ...] = ()
    families: tuple[tuple[str, ...], ...] = (("10.244.1.2", "10.244.1.3"),)
    pinned: tuple[Pinned, ...] = ()
    lock: str = ""  # The holder of host-local's lock
    exclusive: str = ""  # The holder of the cleaner's lock
    journal: tuple[Entry, ...] = ()
    lost: str = ""  # What a cleaner removed without a journal entry
    defied: str = ""  # What a cleaner removed while the journal had a halt that nobody has resumed
    brake: bool = False  # Somebody set the brake
    overrun: tuple[str, ...] = ()  # The sandboxes that a cleaner released from then on
    room: int = 1000  # How many entries can begin before the journal has to drop one
    dropped: str = ""  # The entry that it has dropped
    ready: bool = True  # The kubelet has its pod CIDR
    runtime: str | None = None
    """What the kubelet names as its runtime; empty: it names none. None: it cannot be asked, the weakest evidence."""
    record_first: bool = True
    """Whether containerd or CRI-O records a sandbox before ADD; otherwise only when its list has it."""
    directory: bool = True  # A checkpoint directory exists
    kubelet_started: int = LONG_AGO
    runtime_started: int = LONG_AGO
    clock: int = 0  # Seconds of the boot clock
    jumped: int = 0  # How many seconds the wall clock was moved
    left: tuple[tuple[str, int], ...] = ()  # How often each rare event may still happen

    def file(self, ip: str, network: str = NETWORK) -> File | None:
        return next(
            (file for file in self.files if file.ip == ip and file.network == network), None
        )

    def may(self, rare: str) -> bool:
        for name, most in self.left:
            if name == rare:
                return most > 0
        return False


def changed(world: World, index: int, **fields: object) -> World:
    """Change one sandbox."""
    boxes = list(world.sandboxes)
    boxes[index] = boxes[index]._replace(**fields)  # type: ignore[arg-type]
    return world._replace(sandboxes=tuple(boxes))


def spent(world: World, rare: str) -> World:
    """Use up one occurrence of a rare event."""
    return world._replace(left=tuple((name, most - (name == rare)) for name, most in world.left))


def made(
    world: World, ip: str, content: str, network: str = NETWORK, mtime: int | None = None
) -> World:
    """Create a file. Inodes are reused at once, as ext4 does, so a new inode proves nothing."""
    used = {file.inode for file in world.files}
    inode = next(number for number in count(1) if number not in used)
    file = File(ip, content, inode, world.clock + world.jumped if mtime is None else mtime, network)
    return world._replace(files=tuple(sorted((*world.files, file))))


def without(world: World, gone: Iterable[File]) -> World:
    names = {(file.network, file.ip) for file in gone}
    return world._replace(
        files=tuple(file for file in world.files if (file.network, file.ip) not in names)
    )


def without_sandbox(world: World, container_id: str) -> World:
    """Remove the files of a sandbox, as DEL does."""
    return without(world, [file for file in world.files if file.content == container_id])


def unowned(world: World) -> tuple[File, ...]:
    """Return the true leaks: no container, no record, no checkpoint, no process, no claim, no ADD in progress."""

    def owned(file: File) -> bool:
        return any(
            (
                file.content == sandbox.id
                and (sandbox.container or sandbox.checkpoint or sandbox.record)
            )
            or file.ip in sandbox.active
            or file.ip in sandbox.status
            or (file.ip in sandbox.ips and sandbox.setup == "writing")
            for sandbox in world.sandboxes
        )

    return tuple(file for file in world.files if not owned(file))
