"""The release of one sandbox, from top to bottom, and the link back.

Recheck, read, journal, lock, compare, unlink. THE ONLY MODULE THAT CHANGES FILES OF HOST-LOCAL AND
LIBCNI; a lint rule keeps the calls out of all others. They work relative to an open directory, and
follow no link in it. A reservation is removed and put back only through a `LockedNetwork`: under
host-local's own locks, `flock` on the directory (host-local <= 0.6) and on the file `lock` in it
(>= 0.7). host-local has no other locks. Two other files are created: that `lock` where it is
missing, and `.nodeleak-restoring` where a file cannot be created without a name.
"""

import errno
import fcntl
import os
import posixpath
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from agent.cleanup.journal import RESERVATION, Entry, FileImage, new_entry
from agent.cleanup.journal_store import EntryTooLarge, JournalStore
from agent.cleanup.polling import polling
from agent.cleanup.recheck import Probed, Recheck
from agent.model.release import Outcome, Reason, Refusal, ReleaseRequest, Verdict
from agent.model.remedy import Remedy
from agent.model.snapshot import Reservation
from agent.sources.host import cni_cache
from agent.sources.source_error import SourceError

_MAX_BYTES: Final = cni_cache.LARGEST
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LOCK_MODE: Final = 0o750
"""host-local's own for its lock file (alexflint/go-filemutex)."""
_CREATE_JOB: Final = Remedy(
    "to release, create a Job (kubectl nodeleak clean-job, or deploy/clean-one-node.yaml), "
    "or apply deploy/overlays/cleanup-exec with your image",
    "kubectl nodeleak clean-job {node}",
)
_MOUNT_DATA_DIR: Final = Remedy(
    "to release from this dataDir, mount it writable, as deploy/overlays/data-dir does"
)
_TEMPORARY: Final = "../.nodeleak-restoring"
"""Beside the directories of the networks, where nobody reads it."""
_NOT_REGULAR: Final = FileImage(RESERVATION, "", "", b"", 0, 0, 0, 0, 0)
"""Stands for anything that is not a regular file. It equals no file that was assessed."""


class ReadOnlyMount(OSError):
    """The directory is mounted read-only, so that nothing can be removed from it."""

    def __init__(self, path: Path, remedy: Remedy) -> None:
        super().__init__(errno.EROFS, f"read-only mount: {remedy.text}", str(path))
        self.problem = f"{path}: read-only mount"
        self.remedy = remedy


class RaceLost(Exception):
    """Another process was faster. Nothing was touched."""

    def __init__(self, verdict: Verdict, why: str) -> None:
        super().__init__(why)
        self.verdict = verdict


class LockHeld(RaceLost):
    """Another process holds a lock of host-local, or has just replaced it."""

    def __init__(self) -> None:
        super().__init__(Verdict.BUSY, "another process holds host-local's lock")


def release(
    request: ReleaseRequest,
    probed: Probed,
    recheck: Recheck,
    files: "NodeFiles",
    store: JournalStore,
    *,
    actor: str,
    at: datetime,
) -> Outcome:
    """Release one request that passed every guard and the probe. The recheck may refuse it.

    Returns after the outcome is journaled. Raises OSError if it cannot be journaled before the
    removal: nothing was touched.
    """
    try:
        evidence = recheck.find_owner(request)
        if isinstance(evidence, Refusal):
            return Outcome(request, Verdict.REFUSED, (evidence,))
        with files.opened(request.directories) as networks:
            images = [
                _read_if_unchanged(reservation, networks) for reservation in request.reservations
            ]
        images += dict.fromkeys(files.cached(request))  # a file may be of two reservations
        # The locks are taken twice: without this trial, one that is held for hours would fill the
        # journal with entries that released nothing.
        start = files.clock()
        with files.locked(request.directories):
            waited = files.clock() - start
    except RaceLost as lost:
        return Outcome(request, lost.verdict, why=str(lost))
    except (SourceError, OSError) as error:
        return Outcome(request, Verdict.FAILED, why=describe_error(error))

    results = [probed[leak.key] for leak in request.reservations]
    evidence += [result.why for result in results if result.conclusive]

    entry = new_entry(request, images, actor, at)
    try:
        # Not under the locks: a disk can be slow, and every ADD on the node would wait for it.
        store.begin(entry, evidence)
    except EntryTooLarge as too_large:
        refusal = Refusal(Reason.ENTRY_TOO_LARGE, str(too_large))
        return Outcome(request, Verdict.REFUSED, (refusal,))
    return _remove_under_locks(request, entry, waited, files, store)


def _read_if_unchanged(
    reservation: Reservation, networks: Mapping[str, "OpenNetwork"]
) -> FileImage:
    """Return the file of a reservation; raises RaceLost if it is not the one that was assessed."""
    image = networks[reservation.directory].read(reservation.ip)
    if image is None:
        raise RaceLost(Verdict.GONE, f"{reservation.ip} was released by another process")

    expected = (reservation.inode, reservation.size, reservation.mtime_ns)
    names = (reservation.container_id, reservation.ifname)
    expected_words = [name.encode() for name in names if name]
    words = image.content.split() if any(image.content) else []  # NUL bytes: empty
    is_same = (image.inode, len(image.content), image.mtime_ns) == expected
    if not is_same or words != expected_words:
        raise RaceLost(Verdict.CHANGED, f"{reservation.ip} is not the file that was assessed")
    return image


def _remove_under_locks(
    request: ReleaseRequest,
    entry: Entry,
    waited: float,
    files: "NodeFiles",
    store: JournalStore,
) -> Outcome:
    """Remove the files of a journal entry, and record what became of it. Nothing is asked here.

    `waited`: seconds for which the trial waited for the locks.
    """
    start = files.clock()
    locked_at: float | None = None
    unlocked_at = start
    try:
        with files.locked(entry.directories) as networks:
            locked_at = files.clock()
            verdict, why = _compare_and_unlink(entry.reservations, networks)
            unlocked_at = files.clock()
    except LockHeld as held:
        verdict = held.verdict
        why = str(held)
    except OSError as error:
        why = (
            f"{describe_error(error)}: the sandbox may be partly released; "
            "the next cleanup or restore recovers it"
        )
        return Outcome(request, Verdict.FAILED, why=why, entry=entry.name)

    if verdict is Verdict.RELEASED:
        why = files.unlink_cached(entry)
    ended_at = entry.at + timedelta(seconds=files.clock() - start)
    why = record(store, entry.ended(verdict, why), ended_at, why)
    return Outcome(
        request,
        verdict,
        why=why,
        entry=entry.name,
        waited=None if locked_at is None else waited + locked_at - start,
        held=None if locked_at is None else unlocked_at - locked_at,
    )


def _compare_and_unlink(
    images: Sequence[FileImage], networks: Mapping[str, "LockedNetwork"]
) -> tuple[Verdict, str]:
    """Runs with host-local's locks held: compares and unlinks only. No queries, no fsync.

    Raises OSError if a part of the sandbox was removed, and could not be put back.
    """
    for image in images:
        current = networks[image.directory].read(image.name)
        if current is None:
            return Verdict.GONE, f"{image.name} was released by another process"
        if current != image:
            return Verdict.CHANGED, f"{image.name} is not the file that was journaled"

    removed: list[FileImage] = []
    try:
        for image in images:
            with suppress(FileNotFoundError):  # removed by a process that does not take the lock
                networks[image.directory].unlink(image.name)
                removed.append(image)
    except OSError as error:
        for image in removed:
            networks[image.directory].link(image)
        return Verdict.FAILED, describe_error(error)

    if not removed:
        return Verdict.GONE, "released by a process that does not take the lock"
    return Verdict.RELEASED, ""


def record(store: JournalStore, entry: Entry, at: datetime, why: str) -> str:
    """Record an outcome. Return `why` it is so, and also if it could not be recorded.

    Then the entry stays unfinished.
    """
    try:
        store.update(entry, at)
    except OSError as error:
        unrecorded = f"the journal does not record the outcome: {describe_error(error)}"
        return f"{why}; {unrecorded}" if why else unrecorded
    return why


class OpenNetwork:
    """A network's directory (`Reservation.directory`), open for reading. Methods raise OSError."""

    def __init__(self, directory: str, handle: int) -> None:
        self.directory = directory
        self.handle = handle

    def read(self, name: str) -> FileImage | None:
        """Return the file that has this name now; None if there is none."""
        data_dir, network = posixpath.split(self.directory)
        return _read(self.handle, name, place=RESERVATION, network=network, data_dir=data_dir)

    def addresses_of(self, container_id: str) -> list[str]:
        """Return the addresses that are reserved for a sandbox now."""
        addresses: list[str] = []
        for name in os.listdir(self.handle):
            image = self.read(name)
            if image and image.content.split()[:1] == [container_id.encode()]:
                addresses.append(image.name)
        return addresses


class LockedNetwork(OpenNetwork):
    """A network's directory whose locks are held. Only this removes or puts back a reservation."""

    def unlink(self, name: str) -> None:
        os.unlink(name, dir_fd=self.handle)

    def link(self, image: FileImage) -> None:
        """Put the file back as it was, in one step, if nothing has its name."""
        _link(image, self.handle)


@dataclass
class NodeFiles:
    """The directories of host-local and libcni on this node."""

    networks_dir: Path
    cache_dirs: tuple[Path, ...]
    lock_timeout: float  # seconds to wait for the locks of one sandbox's directories
    clock: Callable[[], float]  # monotonic seconds
    mounted: Callable[[Path], Path] = lambda path: path
    """Where a path of the node is for this process."""
    names_data_dir: Callable[[str], bool] = lambda _: False
    """Whether the CNI configuration or libcni's cache names a dataDir now. Raises SourceError."""

    @contextmanager
    def opened(self, directories: Iterable[str]) -> Iterator[Mapping[str, OpenNetwork]]:
        """Open the directories of networks for reading. Raises OSError."""
        with ExitStack() as stack:
            networks: dict[str, OpenNetwork] = {}
            for directory in directories:
                handle = stack.enter_context(_open_directory(self._path(directory), os.O_NOFOLLOW))
                networks[directory] = OpenNetwork(directory, handle)
            yield networks

    @contextmanager
    def locked(self, directories: Iterable[str]) -> Iterator[Mapping[str, LockedNetwork]]:
        """Hold host-local's locks.

        Raises LockHeld after the timeout, and OSError, also if nothing can be removed.
        """
        poll = polling(LockHeld, self.lock_timeout)
        networks, locks = poll(self._try_locks, sorted(directories))
        with locks:
            yield networks
        # A power cut must not bring back what the journal calls released. Not under the locks: a
        # disk can be slow.
        for path in map(self._path, networks):
            with suppress(OSError), _open_directory(path) as handle:
                os.fsync(handle)

    def _try_locks(
        self, directories: Sequence[str]
    ) -> tuple[Mapping[str, LockedNetwork], ExitStack]:
        """Return the networks with all their locks, and what ends that. Raises LockHeld."""
        with ExitStack() as stack:
            networks = {
                directory: stack.enter_context(self._lock_network(directory))
                for directory in directories
            }
            return networks, stack.pop_all()

    @contextmanager
    def _lock_network(self, directory: str) -> Iterator[LockedNetwork]:
        """Hold both locks of a network's directory; raises LockHeld if one is not available now."""
        self.check_writable(directory)
        path = self._path(directory)
        with _open_directory(path, os.O_NOFOLLOW) as handle:
            _flock(handle)
            lock = os.open("lock", _READ | os.O_CREAT, _LOCK_MODE, dir_fd=handle)
            try:
                if not stat.S_ISREG(os.fstat(lock).st_mode):
                    reason = "not a regular file, as host-local's lock is"
                    raise OSError(errno.EINVAL, reason, "lock")
                _flock(lock)
                # If a locked file was replaced, the next host-local locks the new one, and does not
                # wait for this process.
                if not (_leads_to("lock", lock, handle) and _leads_to(path, handle)):
                    raise LockHeld
                yield LockedNetwork(directory, handle)
            finally:
                os.close(lock)

    def check_writable(self, directory: str) -> None:
        """Raise OSError if files cannot be removed from a directory. Changes nothing."""
        path = self._path(directory)
        with _open_directory(path, os.O_NOFOLLOW) as handle:
            if os.fstatvfs(handle).f_flag & os.ST_RDONLY:
                in_data_dir = not (self.networks_dir / directory).is_relative_to(self.networks_dir)
                raise ReadOnlyMount(path, _MOUNT_DATA_DIR if in_data_dir else _CREATE_JOB)
            if not os.access(".", os.W_OK | os.X_OK, dir_fd=handle, effective_ids=True):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    def require_known(self, directories: Iterable[str]) -> None:
        """Raise PermissionError for a directory that no network here has.

        A journal can contain anything.
        """
        for path in (self.networks_dir / directory for directory in directories):
            if path.parent == self.networks_dir:
                continue
            try:
                is_named = self.names_data_dir(str(path.parent))
            except SourceError as error:
                why = f"it is unknown whether a network has this dataDir: {error}"
                raise PermissionError(errno.EPERM, why, str(path)) from error
            if not is_named:
                why = "neither the CNI configuration nor libcni's cache names this dataDir"
                raise PermissionError(errno.EPERM, why, str(path))

    def removed(self, directories: Iterable[str]) -> frozenset[str]:
        """Return the directories that somebody removed: their parent exists, and they do not."""
        paths = {directory: self._path(directory) for directory in directories}
        return frozenset(
            directory
            for directory, path in paths.items()
            if path.parent.is_dir() and not os.path.lexists(path)
        )

    def _path(self, directory: str) -> Path:
        """Return where the directory of a network is for this process."""
        path = self.networks_dir / directory
        return path if path.is_relative_to(self.networks_dir) else self.mounted(path)

    def cached(self, request: ReleaseRequest) -> Iterator[FileImage]:
        """Yield libcni's results for the sandbox that may be removed with it. Raises OSError."""
        for cache in self.cache_dirs if request.container_id else ():
            with suppress(FileNotFoundError), _open_directory(cache) as directory:
                for reservation in request.reservations:
                    yield from _results(reservation, cache, directory, request)

    def unlink_cached(self, entry: Entry) -> str:
        """Remove the unchanged results of a release. Return what is left: that is no failure."""
        return "; ".join(self._change_cached(entry, _unlink_unchanged, "left in libcni's cache"))

    def link_cached(self, entry: Entry) -> str:
        """Put the results of a release back. Return what could not be put back."""
        return "; ".join(self._change_cached(entry, _link, "not restored to libcni's cache"))

    def _change_cached(
        self, entry: Entry, change: Callable[[FileImage, int], None], failed: str
    ) -> Iterator[str]:
        """Change each result of a release. Yield why one was not: `failed`, and the error."""
        for image in entry.files:
            if image.place == RESERVATION:
                continue
            try:
                if Path(image.place) not in self.cache_dirs:  # as in `require_known`
                    why = "not a configured directory of libcni's cache"
                    raise PermissionError(errno.EPERM, why, image.place)
                with _open_directory(Path(image.place)) as directory:
                    change(image, directory)
            except OSError as error:
                yield f"{failed}: {describe_error(error)}"


def _results(
    reservation: Reservation, cache: Path, directory: int, request: ReleaseRequest
) -> Iterator[FileImage]:
    """Yield the results of a reservation, without those that the runtime calls DEL for."""
    for file in cni_cache.result_files(reservation):
        image = _read(directory, file.name, place=str(cache), network=file.network)
        if image is None or not cni_cache.belongs(image.content, reservation, file):
            continue
        if request.keeps_results and cni_cache.is_deleted_by_id(image.content):
            continue
        yield image


@contextmanager
def _open_directory(path: Path, flags: int = 0) -> Iterator[int]:
    """Open a directory, to work relative to it. Raises OSError."""
    handle = os.open(path, _DIRECTORY | flags)
    try:
        yield handle
    finally:
        os.close(handle)


def _flock(handle: int) -> None:
    """Take a lock without waiting. Raises LockHeld."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LockHeld from error


def _leads_to(path: Path | str, handle: int, directory: int | None = None) -> bool:
    """Return whether a path leads to what is open, and has not been replaced."""
    try:
        current = os.stat(path, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(current, os.fstat(handle))


def _read(
    directory: int, name: str, *, place: str, network: str, data_dir: str = ""
) -> FileImage | None:
    """Return a file; None if nothing has the name. `place`, `network`, `data_dir`: see FileImage.

    Anything but a regular file of usual size is `_NOT_REGULAR`. Raises OSError.
    """
    try:
        handle = os.open(name, _READ, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENXIO, errno.ENODEV}:
            return _NOT_REGULAR
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            return _NOT_REGULAR
        content = os.read(handle, _MAX_BYTES + 1)
    finally:
        os.close(handle)
    return FileImage(
        place=place,
        network=network,
        name=name,
        content=content,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        inode=status.st_ino,
        mtime_ns=status.st_mtime_ns,
        data_dir=data_dir,
    )


def _unlink_unchanged(image: FileImage, directory: int) -> None:
    """Remove a cached result if it is still the file in the journal."""
    if _read(directory, image.name, place=image.place, network=image.network) == image:
        os.unlink(image.name, dir_fd=directory)


def _link(image: FileImage, directory: int) -> None:
    """Create a file that gets its name when it is complete: host-local reads every file."""
    try:
        handle, temporary = _new_file(directory)
        try:
            with os.fdopen(handle, "wb", closefd=False) as file:
                file.write(image.content)
            os.fchown(handle, image.uid, image.gid)
            os.fchmod(handle, image.mode)
            os.utime(handle, ns=(image.mtime_ns, image.mtime_ns))
            os.fsync(handle)
            source = temporary or f"/proc/self/fd/{handle}"
            os.link(
                source, image.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=True
            )
        finally:
            os.close(handle)
            if temporary:
                with suppress(OSError):  # the file is in place
                    os.unlink(temporary, dir_fd=directory)
    except OSError as error:
        raise OSError(error.errno, error.strerror, image.name) from error


def _new_file(directory: int) -> tuple[int, str | None]:
    """Return a new open file without a name, or (overlayfs before Linux 6.1) with its name."""
    try:
        flags = os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC
        return os.open(".", flags, 0o600, dir_fd=directory), None
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR}:
            raise

    # One left by a killed agent may be a second name of a reservation: unlink it, and never write
    # to it.
    with suppress(FileNotFoundError):
        os.unlink(_TEMPORARY, dir_fd=directory)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    return os.open(_TEMPORARY, flags, 0o600, dir_fd=directory), _TEMPORARY


def describe_error(error: Exception) -> str:
    """Return the file and the system's message, if the error has them."""
    if isinstance(error, OSError) and error.strerror:
        why = f"{error.strerror[:1].lower()}{error.strerror[1:]}"
        return f"{error.filename}: {why}" if error.filename else why
    return str(error)
