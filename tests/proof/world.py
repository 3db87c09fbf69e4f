"""The node in memory: one value, compared and hashed, in which every actor does one thing at a time.

Nothing here is agent code: it is docker, the kubelet's checkpoints, the namespaces, host-local's directory and locks.
"""

from collections.abc import Iterable
from itertools import count
from typing import NamedTuple

from agent.cleanup.journal import Entry

NETWORK = "kubenet"
LONG_AGO = -7200
"""Seconds before the model begins."""


class Sandbox(NamedTuple):
    """One pod's sandbox: what is true of it, and how far the kubelet is with it."""

    id: str
    pod: str
    leaves: bool = True
    """Its pod may be deleted while we watch."""
    container: str = ""
    """In truth: created, running, exited; empty: there is none."""
    hidden: bool = False
    """docker has its container, and does not say so."""
    checkpoint: bool = False
    ips: tuple[str, ...] = ()
    """In its hands: from the moment at which ADD makes the file until DEL."""
    configured: tuple[str, ...] = ()
    """In its namespace, until the process in it ends."""
    setup: str = "new"
    """new, created, noted, started, writing, reserved, ready; failed, killed."""
    orphaned: bool = False
    """Its ADD goes on although the kubelet that asked for it is gone."""
    teardown: str = ""
    """torn, untorn, stopped, removed; empty: not begun, or to be begun again."""
    told: tuple[str, ...] = ()
    """The addresses of its pod by the API server's word, which lags."""
    network: str = NETWORK
    families: tuple[tuple[str, ...], ...] = ()
    """What ADD gives out to it, where that is not what it gives to everybody: one address of each family."""
    docker: bool = True
    """Its container is docker's, and not another runtime's."""

    @property
    def exists(self) -> bool:
        return self.container in {"created", "running"}

    @property
    def listed(self) -> bool:
        return self.docker and bool(self.container) and not self.hidden

    @property
    def alive(self) -> tuple[str, ...]:
        """The addresses that a process of it has configured."""
        return self.configured if self.container == "running" else ()

    @property
    def known(self) -> bool:
        """The kubelet still knows of it."""
        return self.checkpoint or self.listed


class File(NamedTuple):
    """A reservation as it lies in host-local's directory."""

    ip: str
    content: str
    inode: int
    mtime: int
    network: str = NETWORK


class World(NamedTuple):
    sandboxes: tuple[Sandbox, ...]
    files: tuple[File, ...] = ()
    families: tuple[tuple[str, ...], ...] = (("10.244.1.2", "10.244.1.3"),)
    lock: str = ""
    """Who holds host-local's lock."""
    exclusive: str = ""
    """Who holds the cleaner's lock."""
    journal: tuple[Entry, ...] = ()
    lost: str = ""
    """What was removed by us without being written down."""
    ready: bool = True
    """The kubelet has its pod CIDR."""
    kubelet_started: int = LONG_AGO
    docker_started: int = LONG_AGO
    clock: int = 0
    """Seconds of the boot clock."""
    jumped: int = 0
    """By how many seconds the wall clock was set."""
    left: tuple[tuple[str, int], ...] = ()
    """How often each of the rare things may still happen."""
    cleaners: tuple[int, ...] = ()
    """Where each process of ours is, in the tree of what such a process can have read."""

    def file(self, ip: str, network: str = NETWORK) -> File | None:
        return next((one for one in self.files if one.ip == ip and one.network == network), None)

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
    """Let something rare happen once less."""
    return world._replace(left=tuple((name, most - (name == rare)) for name, most in world.left))


def made(world: World, ip: str, content: str, network: str = NETWORK, mtime: int | None = None) -> World:
    """Make a file. Inodes are given out again at once, as ext4 does: nothing is proved by their being new."""
    used = {one.inode for one in world.files}
    inode = next(number for number in count(1) if number not in used)
    file = File(ip, content, inode, world.clock + world.jumped if mtime is None else mtime, network)
    return world._replace(files=tuple(sorted((*world.files, file))))


def without(world: World, gone: Iterable[File]) -> World:
    names = {(one.network, one.ip) for one in gone}
    return world._replace(files=tuple(one for one in world.files if (one.network, one.ip) not in names))


def unowned(world: World) -> tuple[File, ...]:
    """Return the leaks, by the truth: no container, no checkpoint, no process, no claim, nobody writing."""
    return tuple(one for one in world.files if not _owned(world, one))


def _owned(world: World, file: File) -> bool:
    return any(
        (file.content == box.id and (box.container or box.checkpoint))
        or file.ip in box.alive
        or file.ip in box.told
        or (file.ip in box.ips and box.setup == "writing")
        for box in world.sandboxes
    )
