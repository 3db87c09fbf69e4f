"""THE ONLY MODULE THAT CHANGES THE NODE. To know all that this agent can destroy, read this file.

It removes and puts back files, by the handle of their directory, and never follows a link. What is in host-local's
directory it touches only under host-local's own locks: `flock` on the directory (host-local <= 0.6) and on the file
`lock` in it (>= 0.7). host-local has no other.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Collection, Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
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
# host-local's own mode for it (alexflint/go-filemutex); a directory of host-local <= 0.6 has none, and gets one.
_LOCK, _LOCK_MODE = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o750


_READ_ONLY: Final = "mounted read-only, as in observe mode: this agent may look here, and release nothing"
_NO_LOCK: Final = "not a regular file, which host-local's lock is"
# Where a file is made that cannot be made without a name: beside the networks' directories, which nobody reads.
_BESIDE: Final = "../.nodeleak-restoring"


class _Busy(Exception):
    """Somebody holds a lock of this network, or has just replaced its file."""


class _Locked:
    """The locks of some networks, held until `unlock`."""

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
        """Return the seconds for which they were held."""
        self._handles.clear()
        self._stack.close()
        held = self._clock() - self._since
        # A power cut must not bring back what the journal calls released. Only now: a disk may take its time.
        for directory in self._changed:
            with suppress(OSError), _opened(directory) as handle:
                os.fsync(handle)
        return held


class NodeFiles:
    """The hands of one round of cleaning. A network whose lock was not to be had is not waited for again."""

    def __init__(self, networks_dir: Path, cache_dirs: Sequence[Path], lock_timeout: float, clock: Clock) -> None:
        """`lock_timeout`: seconds for which the locks of one sandbox's networks are waited for. `clock`: seconds."""
        self._networks_dir, self._cache_dirs = networks_dir, tuple(cache_dirs)
        self._lock_timeout, self._clock = lock_timeout, clock
        self._handles: dict[str, int] = {}
        self._given_up: set[str] = set()
        self._changed: set[Path] = set()
        """The networks' directories that were changed under the locks held now."""

    def check(self, networks: Sequence[str]) -> None:
        """Raise OSError where nothing could be removed anyway, before anything is written down or locked."""
        for network in networks:
            with self._network(network) as directory:
                if os.fstatvfs(directory).f_flag & os.ST_RDONLY:
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
                if not os.access(".", os.W_OK | os.X_OK, dir_fd=directory, effective_ids=True):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), ".")

    def read(self, reservation: Reservation) -> tuple[Reservation | UnrecognizedEntry, FileImage] | None:
        """Read what lies under a reservation's name now; None where nothing does. Raises OSError."""
        with self._network(reservation.network) as directory:
            entry = reservations.read_one(reservation.network, reservation.ip, directory)
            if entry is None:
                return None
            image = _read_file(RESERVATION, reservation.network, reservation.ip, directory)
            return entry, image or _NO_FILE

    def cached(self, candidate: ReleaseRequest) -> tuple[FileImage, ...]:
        """Find libcni's results of the sandbox, known by the JSON inside. Raises OSError."""
        if not candidate.container_id:
            return ()
        found: dict[tuple[str, str], FileImage] = {}
        for cache in self._cache_dirs:
            try:
                with _opened(cache, _DIRECTORY & ~os.O_NOFOLLOW) as directory:
                    for reservation in candidate.reservations:
                        for name, network, ifname in cni_cache.names_of(reservation):
                            image = _read_file(str(cache), network, name, directory)
                            if image and cni_cache.belongs(image.content, reservation, network, ifname):
                                found[image.place, name] = image
            except FileNotFoundError:
                continue
        return tuple(found.values())

    def lock(self, networks: Sequence[str]) -> _Locked | None:
        """Take host-local's locks; None where they were not to be had in time. Raises OSError."""
        start = self._clock()
        patience = 0.0 if self._given_up.intersection(networks) else self._lock_timeout
        # host-local waits in the kernel, and we must not: behind a lock that is held for ever we would hang with it.
        tries = tenacity.Retrying(
            stop=tenacity.stop_after_delay(patience),
            wait=tenacity.wait_random(0.001, 0.005),
            retry=tenacity.retry_if_exception_type(_Busy),
            reraise=True,
        )
        try:
            stack = tries(self._try_locks, sorted(networks))
        except _Busy as busy:
            self._given_up.update(busy.args)
            return None
        self._changed.clear()
        return _Locked(self._clock() - start, self._changed, self._handles, stack, self._clock)

    def _try_locks(self, networks: Sequence[str]) -> ExitStack:
        handles: dict[str, int] = {}
        with ExitStack() as stack:
            for network in networks:
                handles[network] = stack.enter_context(_opened(self._networks_dir / network))
                stack.enter_context(_locked(handles[network], self._networks_dir / network))
            self._handles.update(handles)
            return stack.pop_all()

    def remove(self, image: FileImage) -> None:
        """Remove a file; of libcni's cache only the very one that was kept. Raises OSError."""
        if image.place == RESERVATION:
            with self._place(image) as directory:
                os.unlink(image.name, dir_fd=directory)
            self._changed.add(self._networks_dir / image.network)
            return
        with suppress(FileNotFoundError), self._place(image) as directory:
            if _read_file(image.place, image.network, image.name, directory) == image:
                os.unlink(image.name, dir_fd=directory)

    def put_back(self, image: FileImage) -> None:
        """Make a file as it was, whole at once, where nothing has its name. Raises OSError, FileExistsError too."""
        with self._place(image) as directory:
            _make(image, directory)
        if image.place == RESERVATION:
            self._changed.add(self._networks_dir / image.network)

    def present(self, image: FileImage) -> FileImage | None:
        """Return the file that has a kept file's name now; None where none has. Raises OSError."""
        with self._place(image) as directory:
            return _read_file(image.place, image.network, image.name, directory)

    def taken(self, image: FileImage) -> bool:
        """Tell whether anything has a kept file's name now. Raises OSError."""
        with self._place(image) as directory:
            return image.name in os.listdir(directory)

    def addresses_of(self, container_id: str, network: str) -> tuple[str, ...]:
        """Return the addresses that a sandbox has in a network now. Raises OSError."""
        with self._network(network) as directory:
            entries = (reservations.read_one(network, name, directory) for name in os.listdir(directory))
            return tuple(
                entry.ip
                for entry in entries
                if isinstance(entry, Reservation) and entry.container_id == container_id
            )  # fmt: skip

    @contextmanager
    def _network(self, network: str) -> Iterator[int]:
        """Open a network's directory; while its locks are held, the very one that is locked."""
        path = self._networks_dir / network
        if (handle := self._handles.get(network)) is None:
            with _opened(path) as opened:
                yield opened
            return
        with _in_words(path):
            yield handle

    def _place(self, image: FileImage) -> AbstractContextManager[int]:
        if image.place == RESERVATION:
            return self._network(image.network)
        if Path(image.place) not in self._cache_dirs:
            # A journal may say anything.
            raise PermissionError(errno.EPERM, "not a directory of libcni's cache, as far as we were told", image.place)
        return _opened(Path(image.place), _DIRECTORY & ~os.O_NOFOLLOW)


@contextmanager
def _opened(directory: Path, flags: int = _DIRECTORY) -> Iterator[int]:
    try:
        handle = os.open(directory, flags)
    except OSError as error:
        if error.errno in {errno.ELOOP, errno.ENOTDIR}:
            raise OSError(error.errno, "not a directory, and links are not followed", str(directory)) from error
        raise
    try:
        with _in_words(directory):
            yield handle
    finally:
        os.close(handle)


@contextmanager
def _in_words(directory: Path) -> Iterator[None]:
    """Name the file in full, which an error by handle does not, and say what a read-only mount means."""
    try:
        yield
    except OSError as error:
        name = error.filename2 or error.filename
        if isinstance(name, str) and name.startswith("/"):
            raise
        why = _READ_ONLY if error.errno == errno.EROFS else error.strerror
        raise OSError(error.errno, why, str(directory / name if isinstance(name, str) else directory)) from error


@contextmanager
def _locked(directory: int, path: Path) -> Iterator[None]:
    """Hold both lock objects of a network's directory; raises _Busy where one is not to be had now."""
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
        # Whoever replaces what is locked lets the next host-local lock the new one, and go on at once.
        if not (_is_still("lock", found, directory) and _is_still(path, os.fstat(directory))):
            raise _Busy(path.name)
        yield
    finally:
        os.close(lock)


def _flock(handle: int, network: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _Busy(network.name) from error


def _is_still(path: Path | str, found: os.stat_result, directory: int | None = None) -> bool:
    try:
        now = os.stat(path, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return _same(now, found)


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


_NO_FILE: Final = FileImage(RESERVATION, "", "", b"", 0, 0, 0, 0, 0)
"""Stands for what cannot be kept, because it is no file; nothing that was judged is equal to it."""


def _read_file(place: str, network: str, name: str, directory: int) -> FileImage | None:
    """Read a regular file whole; None for whatever is not one."""
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
    return FileImage(
        place, network, name, content, mode, found.st_uid, found.st_gid, found.st_ino, found.st_mtime_ns
    )  # fmt: skip


def _make(image: FileImage, directory: int) -> None:
    """Make a file that appears with its name only when it is whole: host-local reads every file that it finds."""
    handle, beside = _new_file(directory)
    try:
        with os.fdopen(handle, "wb", closefd=False) as file:
            file.write(image.content)
        os.fchown(handle, image.uid, image.gid)
        os.fchmod(handle, image.mode)
        os.utime(handle, ns=(image.mtime_ns, image.mtime_ns))
        os.fsync(handle)
        made = beside or f"/proc/self/fd/{handle}"
        os.link(made, image.name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(handle)
        if beside:
            os.unlink(beside, dir_fd=directory)


def _new_file(directory: int) -> tuple[int, str]:
    """Open a file without a name; on a file system that has none, such as NFS, return the name it has meanwhile."""
    try:
        return os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=directory), ""
    except OSError as error:
        if error.errno not in {errno.EOPNOTSUPP, errno.EISDIR}:
            raise
    # What a dead agent left may by now be a reservation's other name: it is unlinked, and never written to.
    with suppress(FileNotFoundError):
        os.unlink(_BESIDE, dir_fd=directory)
    made = os.open(_BESIDE, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=directory)
    return made, _BESIDE
