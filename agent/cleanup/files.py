"""THE ONLY MODULE THAT CHANGES FILES OF HOST-LOCAL AND LIBCNI. The agent's others write only what is its own.

It removes files and puts them back, relative to an open directory, and follows no link in it. It creates two others:
host-local's `lock` where it is missing, and `.nodeleak-restoring` where no file can be without a name. It changes a
network's directory only under host-local's own locks: `flock` on the directory (host-local <= 0.6) and on the file
`lock` in it (>= 0.7). host-local has no other locks.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeAlias

import tenacity

from agent.cleanup.release import RESERVATION, FileImage
from agent.model.release import ReleaseRequest
from agent.model.snapshot import Reservation, UnrecognizedEntry
from agent.sources.host import cni_cache, reservations

Clock: TypeAlias = Callable[[], float]

_LARGEST = 256 * 1024
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# host-local's own mode for its lock file (alexflint/go-filemutex). host-local <= 0.6 has no such file: it is created.
_LOCK, _LOCK_MODE = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o750

_READ_ONLY: Final = (
    "read-only mount: to release, create a Job (kubectl nodeleak clean-job, or deploy/clean-one-node.yaml), "
    "or apply deploy/overlays/cleanup-exec with your image"
)
_DATA_DIR: Final = "read-only mount: to release from this dataDir, mount it writable, as deploy/overlays/data-dir does"
_NO_LOCK: Final = "not a regular file, as host-local's lock is"
_TEMPORARY: Final = "../.nodeleak-restoring"
"""A temporary name, where a file needs one. It is beside the directories of the networks, where nobody reads it."""


class _Busy(Exception):
    """Another process holds a lock of this directory, or has just replaced the lock file."""


class _Locked:
    """The locks of some directories, held until `unlock`."""

    def __init__(
        self,
        waited: float,
        changed: Collection[Path],
        handles: MutableMapping[str, int],
        stack: ExitStack,
        clock: Clock,
    ) -> None:
        self.waited = waited
        self._changed, self._handles, self._stack, self._clock = changed, handles, stack, clock
        self._since = clock()

    def unlock(self) -> float:
        """Return the seconds for which the locks were held."""
        self._handles.clear()
        self._stack.close()
        held = self._clock() - self._since
        # A power cut must not bring back what the journal calls released. Not under the lock: a disk can be slow.
        for directory in self._changed:
            with suppress(OSError), _opened(directory) as handle:
                os.fsync(handle)
        return held


class NodeFiles:
    """The file operations of one sync. It waits for the locks of a directory only until the first timeout.

    A directory is that of a network (`Reservation.directory`).
    """

    def __init__(
        self,
        networks_dir: Path,
        cache_dirs: Sequence[Path],
        lock_timeout: float,
        clock: Clock,
        mounted: Callable[[Path], Path] = lambda path: path,
    ) -> None:
        """`lock_timeout`: seconds to wait for the locks of one sandbox's directories. `clock`: monotonic seconds.

        `mounted`: where a path of the node is for this process.
        """
        self._networks_dir, self._cache_dirs, self._mounted = networks_dir, tuple(cache_dirs), mounted
        self._lock_timeout, self._clock = lock_timeout, clock
        self._handles: dict[str, int] = {}
        self._timed_out: set[Path] = set()
        self._changed: set[Path] = set()
        """The directories of networks that were changed under the current locks."""

    def read(self, reservation: Reservation) -> tuple[Reservation | UnrecognizedEntry, FileImage] | None:
        """Read the file that has the reservation's name now; None if there is none. Raises OSError."""
        with self._network(reservation.directory) as directory:
            entry = reservations.read_one(reservation.network, reservation.ip, directory)
            if entry is None:
                return None
            image = _read_file(RESERVATION, reservation.network, reservation.ip, directory) or _NO_FILE
            return entry, replace(image, data_dir=reservation.data_dir)

    def cached(self, request: ReleaseRequest) -> tuple[FileImage, ...]:
        """Find libcni's cached results to remove, recognized by their content. Raises OSError."""
        if not request.container_id:
            return ()
        found: dict[tuple[str, str], FileImage] = {}
        for cache in self._cache_dirs:
            try:
                with _opened(cache, _DIRECTORY & ~os.O_NOFOLLOW) as directory:
                    for reservation in request.reservations:
                        for name, network, ifname in cni_cache.names_of(reservation):
                            image = _read_file(str(cache), network, name, directory)
                            if image is None or not cni_cache.belongs(image.content, reservation, network, ifname):
                                continue
                            if not (request.keeps_results and cni_cache.is_deleted_by_id(image.content)):
                                found[image.place, name] = image
            except FileNotFoundError:
                continue
        return tuple(found.values())

    def try_lock(self, directories: Sequence[str]) -> float | None:
        """Take host-local's locks and drop them. Return the seconds waited; None if that took too long.

        Raises OSError, also if nothing could be removed from the directories.
        """
        for directory in directories:
            self.check_writable(directory)
        if (locked := self.lock(directories)) is None:
            return None
        locked.unlock()
        return locked.waited

    def check_writable(self, directory: str) -> None:
        """Check that files can be removed from a directory, without changing it. Raises OSError."""
        with self._network(directory) as handle:
            _check_writable(handle)

    def lock(self, directories: Sequence[str]) -> _Locked | None:
        """Take host-local's locks; None if that took too long. Raises OSError."""
        start = self._clock()
        timeout = 0.0 if self._timed_out.intersection(map(self._path, directories)) else self._lock_timeout
        # host-local blocks in the kernel. The agent must not: behind a lock that is never released it would hang.
        tries = tenacity.Retrying(
            stop=tenacity.stop_after_delay(timeout),
            wait=tenacity.wait_random(0.001, 0.005),
            retry=tenacity.retry_if_exception_type(_Busy),
            reraise=True,
        )
        try:
            stack = tries(self._try_locks, sorted(directories))
        except _Busy as busy:
            self._timed_out.update(busy.args)
            return None
        self._changed.clear()
        return _Locked(self._clock() - start, self._changed, self._handles, stack, self._clock)

    def _try_locks(self, directories: Sequence[str]) -> ExitStack:
        handles: dict[str, int] = {}
        with ExitStack() as stack:
            for directory in directories:
                handles[directory] = stack.enter_context(self._opened(directory))
                stack.enter_context(_locked(handles[directory], self._path(directory)))
            self._handles.update(handles)
            return stack.pop_all()

    def remove(self, image: FileImage) -> None:
        """Remove a file; from libcni's cache only if it is unchanged. Raises OSError."""
        if image.place == RESERVATION:
            with self._place(image) as directory:
                os.unlink(image.name, dir_fd=directory)
            self._changed.add(self._path(image.directory))
            return
        with suppress(FileNotFoundError), self._place(image) as directory:
            if _read_file(image.place, image.network, image.name, directory) == image:
                os.unlink(image.name, dir_fd=directory)

    def put_back(self, image: FileImage) -> None:
        """Create the file as it was, atomically, if nothing has its name. Raises OSError, such as FileExistsError."""
        with self._place(image) as directory:
            _create(image, directory)
        if image.place == RESERVATION:
            self._changed.add(self._path(image.directory))

    def present(self, image: FileImage) -> FileImage | None:
        """Return the file that has this name now; None if there is none. Raises OSError."""
        with self._place(image) as directory:
            return _read_file(image.place, image.network, image.name, directory)

    def taken(self, image: FileImage) -> bool:
        """Tell whether anything has this name now. Raises OSError."""
        with self._place(image) as directory:
            return image.name in os.listdir(directory)

    def addresses_of(self, container_id: str, directory: str) -> tuple[str, ...]:
        """Return the addresses that are reserved for a sandbox now. Raises OSError."""
        with self._network(directory) as handle:
            entries = (reservations.read_one(directory, name, handle) for name in os.listdir(handle))
            return tuple(
                entry.ip for entry in entries if isinstance(entry, Reservation) and entry.container_id == container_id
            )

    @contextmanager
    def _network(self, directory: str) -> Iterator[int]:
        """Open a network's directory; under its locks, return the very directory that is locked."""
        if (handle := self._handles.get(directory)) is None:
            with self._opened(directory) as opened:
                yield opened
            return
        with _described(self._path(directory)):
            yield handle

    def _opened(self, directory: str) -> AbstractContextManager[int]:
        path = Path(directory)
        elsewhere = path.is_absolute() and not path.is_relative_to(self._networks_dir)
        return _opened(self._path(directory), read_only=_DATA_DIR if elsewhere else _READ_ONLY)

    def _path(self, directory: str) -> Path:
        path = self._networks_dir / directory
        return path if path.is_relative_to(self._networks_dir) else self._mounted(path)

    def _place(self, image: FileImage) -> AbstractContextManager[int]:
        if image.place == RESERVATION:
            return self._network(image.directory)
        if Path(image.place) not in self._cache_dirs:
            # A journal can contain anything.
            raise PermissionError(errno.EPERM, "not a configured directory of libcni's cache", image.place)
        return _opened(Path(image.place), _DIRECTORY & ~os.O_NOFOLLOW)


def _check_writable(directory: int) -> None:
    if os.fstatvfs(directory).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=directory, effective_ids=True):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), ".")


@contextmanager
def _opened(directory: Path, flags: int = _DIRECTORY, read_only: str = _READ_ONLY) -> Iterator[int]:
    try:
        handle = os.open(directory, flags)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise OSError(error.errno, "not a directory, and links are not followed", str(directory)) from error
        raise
    try:
        with _described(directory, read_only):
            yield handle
    finally:
        os.close(handle)


@contextmanager
def _described(directory: Path, read_only: str = _READ_ONLY) -> Iterator[None]:
    """Complete errors: relative to an open directory they lack its path. `read_only`: explains such a mount."""
    try:
        yield
    except OSError as error:
        name = error.filename2 or error.filename
        if isinstance(name, str) and name.startswith("/"):
            raise
        why = read_only if error.errno == errno.EROFS else error.strerror
        raise OSError(error.errno, why, str(directory / name if isinstance(name, str) else directory)) from error


@contextmanager
def _locked(directory: int, path: Path) -> Iterator[None]:
    """Hold both locks of a network's directory; raises _Busy if one is not available now."""
    _flock(directory, path)
    try:
        lock = os.open("lock", _LOCK, _LOCK_MODE, dir_fd=directory)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.EISDIR, errno.ENXIO}:
            raise OSError(error.errno, _NO_LOCK, "lock") from error
        raise
    try:
        found = os.fstat(lock)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, _NO_LOCK, "lock")
        _flock(lock, path)
        # If the locked file or directory was replaced, the next host-local locks the new one and does not wait.
        if not (_is_still("lock", found, directory) and _is_still(path, os.fstat(directory))):
            raise _Busy(path)
        yield
    finally:
        os.close(lock)


def _flock(handle: int, path: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _Busy(path) from error


def _is_still(path: Path | str, found: os.stat_result, directory: int | None = None) -> bool:
    try:
        now = os.stat(path, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return _same(now, found)


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


_NO_FILE: Final = FileImage(RESERVATION, "", "", b"", 0, 0, 0, 0, 0)
"""Stands for anything that is not a regular file. It equals no file that was assessed."""


def _read_file(place: str, network: str, name: str, directory: int) -> FileImage | None:
    """Read a regular file; None for anything else."""
    try:
        handle = os.open(name, _READ, dir_fd=directory)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENODEV}:
            return None
        raise
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size > _LARGEST:
            return None
        content = os.read(handle, _LARGEST + 1)
    finally:
        os.close(handle)
    mode = stat.S_IMODE(found.st_mode)
    return FileImage(place, network, name, content, mode, found.st_uid, found.st_gid, found.st_ino, found.st_mtime_ns)


def _create(image: FileImage, directory: int) -> None:
    """Create a file that gets its name when it is complete: host-local reads every file that it finds."""
    handle, temporary = _new_file(directory)
    try:
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(image.content)
        os.fchown(handle, image.uid, image.gid)
        os.fchmod(handle, image.mode)
        os.utime(handle, ns=(image.mtime_ns, image.mtime_ns))
        os.fsync(handle)
        source = temporary or f"/proc/self/fd/{handle}"
        os.link(source, image.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(handle)
        if temporary:
            os.unlink(temporary, dir_fd=directory)


def _new_file(directory: int) -> tuple[int, str]:
    """Open a file without a name. Where the file system cannot (NFS), return the temporary name that it has."""
    try:
        return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=directory), ""
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR}:
            raise
    # One left by an agent that died may be a second name of a reservation: unlink it, and never write to it.
    with suppress(FileNotFoundError):
        os.unlink(_TEMPORARY, dir_fd=directory)
    handle = os.open(_TEMPORARY, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=directory)
    return handle, _TEMPORARY
