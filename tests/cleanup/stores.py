"""Real files: host-local's directories, libcni's cache and a journal, and other processes that use them."""

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import signal
import stat
import struct
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeAlias

from agent.cleanup.journal import Entry, Journal
from agent.cleanup.journal_store import JournalStore
from agent.cleanup.restore import RestoreError, recover_and_restore
from agent.cleanup.run import Cleaner
from agent.cleanup.unlink import LockedNetwork, LockHeld, NodeFiles, describe_error
from agent.model.release import Limits, Outcome
from agent.model.snapshot import NotRequested, Reservation, Snapshot
from agent.sources.host.reservations import read_reservations
from tests.builders import GONE, NOW, UPTIME, make_limits, node, scanned
from tests.cleanup.recheck import Owners
from tests.wire import needs, only_with, run

File: TypeAlias = tuple[bytes, int, int, int, int]
"""A file byte for byte: content, mode, owner, group, mtime in nanoseconds."""

MADE_NS: Final = (
    1_700_000_000_123_456_789  # An mtime that neither seconds nor a float can represent
)
Step: TypeAlias = str  # What a release has just done
STEPS: Final = (
    "asked the runtime", "asked the kubelet", "asked the kernel", "read", "locked", "unlocked", "journaled",
    "locked", "compared", "removed", "unlocked", "recorded",
)  # fmt: skip
"""Of a sandbox with one address."""


@dataclass
class WatchedFiles(NodeFiles):
    """Tells what has just been done."""

    happens: Callable[[Step], None] = lambda _: None

    @contextlib.contextmanager
    def opened(self, directories: Iterable[str]) -> Iterator[Mapping[str, Any]]:
        with super().opened(directories) as networks:
            yield networks
        self.happens("read")

    @contextlib.contextmanager
    def locked(self, directories: Iterable[str]) -> Iterator[Mapping[str, LockedNetwork]]:
        with super().locked(directories) as networks:
            self.happens("locked")
            for network in networks.values():
                vars(network)["unlink"] = _told(network.unlink, self.happens, "compared", "removed")
            yield networks
        self.happens("unlocked")


def _told(
    method: Callable[..., None], happens: Callable[[Step], None], before: Step, after: Step
) -> Callable[..., None]:
    def told(*arguments: Any) -> None:
        if before:
            happens(before)
        method(*arguments)
        happens(after)

    return told


_TICKS: Final = itertools.count()


class Store:
    """The files of a node below one directory."""

    def __init__(self, root: Path) -> None:
        self.root, self.networks, self.state = root, root / "networks", root / "state"
        self.caches = root / "cache" / "results", root / "results"
        self.journal_store = JournalStore(self.state)
        for directory in (self.network(), *self.caches):
            directory.mkdir(parents=True)

    @property
    def journal_file(self) -> Path:
        """That of the last entry."""
        return max((self.state / "journal").glob("*.json"))

    def network(self, name: str = "kubenet") -> Path:
        return self.networks / name

    def reserve(
        self,
        ip: str = "10.244.1.9",
        container_id: str = GONE,
        *,
        network: str = "kubenet",
        ifname: str = "eth0",
        mode: int = 0o600,
        owner: int = 0,
        content: bytes | None = None,
    ) -> Reservation:
        """Write a reservation as host-local does (`>= 0.8`; without an interface: `<= 0.7`), and read it as we do."""
        self.network(network).mkdir(parents=True, exist_ok=True)
        file = self.network(network) / ip
        text = f"{container_id}\r\n{ifname}" if ifname else container_id
        file.write_bytes(text.encode() if content is None else content)
        file.chmod(mode)
        if owner:
            os.chown(file, owner, owner)
        os.utime(file, ns=(MADE_NS, MADE_NS))
        return self.find(ip, network)

    def set_time(self, file: Path, mtime_ns: int) -> None:
        os.utime(file, ns=(mtime_ns, mtime_ns))

    def find(self, ip: str = "10.244.1.9", network: str = "kubenet") -> Reservation:
        """Read a reservation as a snapshot does."""
        found = read_reservations(self.networks, network).reading.known()
        return next(reservation for reservation in found if reservation.ip == ip)

    def keep_result(
        self,
        container_id: str = GONE,
        *,
        ip: str = "10.244.1.9",
        network: str = "kubenet",
        ifname: str = "eth0",
        bare: bool = False,
        at: int = 0,
        **inside: object,
    ) -> Path:
        """Write a result as libcni does: with its surroundings (`>= 0.8`), or `bare`."""
        result = {"cniVersion": "0.4.0", "ips": [{"version": "4", "address": f"{ip}/24"}]}
        names = {"containerId": container_id, "networkName": network, "ifName": ifname}
        whole = {"kind": "cniCacheV1", "config": "e30=", **names, "result": result, **inside}
        file = self.caches[at] / f"{network}-{container_id}-{ifname}"
        file.write_text(json.dumps(result if bare else whole))
        os.utime(file, ns=(MADE_NS, MADE_NS))
        return file

    def file_ops(
        self, lock_timeout: float = 0.1, happens: Callable[[Step], None] = lambda _: None
    ) -> NodeFiles:
        return WatchedFiles(
            self.networks, self.caches, lock_timeout, time.perf_counter, happens=happens
        )

    def cleaner(self, limits: Limits, *, at: datetime | None = None, **parts: Any) -> Cleaner:
        now = at or NOW.replace(
            microsecond=next(_TICKS)
        )  # no two entries of a sandbox may begin at the same
        journal = parts.get("journal", self.journal_store)
        recheck, files = (
            parts.get("recheck", Owners().recheck()),
            parts.get("file_ops", self.file_ops()),
        )
        return Cleaner(
            limits=limits,
            actor="clean",
            store=journal,
            recheck=recheck,
            read_brake=lambda: NotRequested("brake", "--brake=off"),
            files=files,
            now=lambda: now,
            uptime=lambda: UPTIME,
            dry_run=False,
        )

    def release(
        self, *reserved: Reservation, snapshot: Snapshot | None = None, **parts: Any
    ) -> Outcome:
        """Release one sandbox with these reservations, as `nodeleak clean --apply` does."""
        networks, ips = ({getattr(leak, name) for leak in reserved} for name in ("network", "ip"))
        limits = make_limits(networks=frozenset(networks), only=frozenset(ips))
        cleaner = self.cleaner(limits, **parts)
        cleaner.before_snapshot()
        snapshot = snapshot or node(*reserved)
        (outcome,) = cleaner.after_snapshot((snapshot,), scanned(snapshot)).outcomes
        return outcome

    def release_with(self, happens: Callable[[Step], None], *reserved: Reservation) -> Outcome:
        """Release them, and let something happen after each step."""
        recheck, journal = Owners(happens=happens).recheck(), JournalStore(self.state)
        vars(journal)["begin"] = _told(journal.begin, happens, "", "journaled")
        vars(journal)["update"] = _told(journal.update, happens, "", "recorded")
        return self.release(
            *reserved, recheck=recheck, journal=journal, file_ops=self.file_ops(happens=happens)
        )

    def start(self) -> None:
        """Do what a cleaner does first when it starts."""
        self.cleaner(make_limits(), journal=JournalStore(self.state)).before_snapshot()

    def restore(self, name: str = "", file_ops: NodeFiles | None = None) -> list[object]:
        """Restore an entry, by default the only one, and return whether that is done, and why not."""
        parts = file_ops or self.file_ops(), self.journal_store
        with self.journal_store.exclusive(30):
            try:
                return [True, recover_and_restore(name or self.entry().name, *parts, NOW) or ""]
            except (OSError, RestoreError) as error:
                return [False, describe_error(error)]

    def journal(self) -> Journal:
        """Read the journal as a new process does."""
        return JournalStore(self.state).read()

    def entry(self) -> Entry:
        """Return the only entry."""
        (entry,) = self.journal().entries
        return entry

    def files(self) -> dict[str, File]:
        """Return every reservation, byte for byte, by network and address."""
        return {
            f"{directory.name}/{file.name}": whole(file)
            for directory in self.networks.iterdir()
            if directory.is_dir()
            for file in directory.iterdir()
            if file.name != "lock"
        }

    def unlocked(self, *networks: str) -> bool:
        """Whether the locks of these networks, by default of all, are free."""
        every = [path.name for path in self.networks.iterdir() if path.is_dir()]
        try:
            with self.file_ops(0).locked(networks or every):
                return True
        except LockHeld:
            return False


def whole(file: Path) -> File:
    at = file.lstat()
    return file.read_bytes(), stat.S_IMODE(at.st_mode), at.st_uid, at.st_gid, at.st_mtime_ns


def at(step: Step, do: Callable[[], object], nth: int = 1) -> Callable[[Step], None]:
    """Do something once, after a step has been done for the n-th time."""
    seen = itertools.count(1)

    def happens(done: Step) -> None:
        if done == step and next(seen) == nth:
            do()

    return happens


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


_HOLD: Final = """
import fcntl, os, sys
fcntl.flock(os.open(sys.argv[1], os.O_RDONLY | (os.O_CREAT if sys.argv[2] else 0), 0o750), fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def another_process_locks(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Hold a lock in another process until it is terminated. `path`: a directory, or a file that is created."""
    command = [sys.executable, "-ISc", _HOLD, str(path), "" if path.is_dir() else "create"]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: S603 (our own script)
    with holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield holder
        finally:
            let_go(holder)


def let_go(holder: subprocess.Popen[bytes]) -> None:
    assert holder.stdin is not None
    holder.stdin.close()


def start(act: Callable[[], object], *, named: bool = False) -> int:
    """Run something in a child process, which then exits. Return its process ID.

    `named`: every file system is one without O_TMPFILE, as overlayfs was before Linux 6.1.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it does only what is said here
        child = os.fork()
    if child == 0:
        code = 1
        try:
            if named:
                refuse(
                    "open",
                    95,
                    when=lambda arguments: bool(arguments[2] & os.O_TMPFILE & ~os.O_DIRECTORY),
                )
            act()
            code = 0
        except BaseException:  # noqa: BLE001 (the parent is told by the exit code)
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def ends_by_itself(act: Callable[[], object], *, named: bool = False) -> bool:
    """Run something in a child process; False if SIGKILL ended it."""
    code = os.waitstatus_to_exitcode(os.waitpid(start(act, named=named), 0)[1])
    assert code in {0, -signal.SIGKILL}, "the child says why, above"
    return code == 0


def in_child(act: Callable[[], Any], *, named: bool = False) -> Any:
    """Run something in a child process and return its result, by way of JSON."""
    reading, writing = os.pipe()
    child = start(lambda: os.write(writing, json.dumps(act()).encode()), named=named)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        content = file.read()
    assert os.waitpid(child, 0)[1] == 0, "the child says why, above"
    return json.loads(content)


def synced(act: Callable[[], object], check: Callable[[], object]) -> list[tuple[Path, Any]]:
    """Run something in a child process. Return every path that it syncs to disk, and what a check says then."""

    def watched() -> list[tuple[str, Any]]:
        found: list[tuple[str, Any]] = []
        fsync = os.fsync

        def record(handle: int) -> None:
            os.fsync = fsync
            found.append((str(Path(f"/proc/self/fd/{handle}").readlink()), check()))
            os.fsync = record  # type: ignore[assignment]
            fsync(handle)

        os.fsync = record  # type: ignore[assignment]
        act()
        return found

    return [(Path(path), answer) for path, answer in in_child(watched)]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_TOUCHING: Final = {"open", "fcntl.flock"} | {
    f"os.{call}"
    for call in (
        "mkdir",
        "rename",
        "remove",
        "link",
        "truncate",
        "chown",
        "chmod",
        "utime",
        "listdir",
    )
}


def die_at(moment: int) -> None:
    """Let this process, which cannot be used for anything else any more, be killed at its n-th call of the system.

    What Python audits is seen before it is done; `write` and `fsync` are not audited. Half of what is written counts
    as a moment, too.
    """
    moments = itertools.count(1)

    def tick() -> None:
        if next(moments) == moment:
            die()

    write, fsync = os.write, os.fsync

    def dying_write(handle: int, text: bytes) -> int:
        tick()
        half = write(handle, text[: len(text) // 2])
        tick()
        return half + write(handle, text[half:])

    def dying_fsync(handle: int) -> None:
        tick()
        fsync(handle)
        tick()

    sys.addaudithook(lambda event, _: tick() if event in _TOUCHING else None)
    os.write, os.fsync = dying_write, dying_fsync  # type: ignore[assignment]


def just_before(event: str, do: Callable[[tuple[Any, ...]], object]) -> None:
    """Do something before each system call of a kind. This process is unusable afterwards."""
    sys.addaudithook(lambda happening, arguments: do(arguments) if happening == event else None)


def refuse(event: str, errno: int, *, when: Callable[[tuple[Any, ...]], bool]) -> None:
    """Let the kernel reject system calls of this process, which is unusable afterwards."""

    def reject(arguments: tuple[Any, ...]) -> None:
        if when(arguments):
            raise OSError(errno, os.strerror(errno))

    just_before(event, reject)


_CLONE_NEWNS: Final = 0x00020000


def mount(*words: str | Path) -> None:
    """Mount something that only this process, a child of the tests, sees."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "unshare")
    for command in (("--make-rprivate", "/"), words):
        run("mount", *map(str, command))


def may_mount() -> None:
    needs(os.geteuid() == 0, "root")
    try:
        run("unshare", "-m", "mount", "-t", "tmpfs", "none", "/mnt")
    except (AssertionError, FileNotFoundError):
        only_with(False, "the right to mount")


_GETFLAGS, _SETFLAGS, _IMMUTABLE = 0x80086601, 0x40086602, 0x10


@contextlib.contextmanager
def immutable(file: Path) -> Iterator[None]:
    """Let a file be one that not even root can unlink (`chattr +i`)."""
    handle = os.open(file, os.O_RDONLY)
    try:
        (before,) = struct.unpack("l", fcntl.ioctl(handle, _GETFLAGS, struct.pack("l", 0)))
        fcntl.ioctl(handle, _SETFLAGS, struct.pack("l", before | _IMMUTABLE))
    except OSError as error:
        os.close(handle)
        needs(False, f"a file that can be made immutable: {error}")
    try:
        yield
    finally:
        fcntl.ioctl(handle, _SETFLAGS, struct.pack("l", before))
        os.close(handle)
