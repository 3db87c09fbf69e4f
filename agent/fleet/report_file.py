"""The report file of a cleanup of many nodes: created once, read to go on, and used by one run at a time."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

from agent.config import UsageError
from agent.fleet.waves import CleanReport
from agent.model.nesting import parse_json


def create(given: str | None) -> Path:
    """Create a report file. No report is ever overwritten: another cleanup may need it to go on."""
    for path in [Path(given)] if given else (Path(f"nodeleak-clean-{number}.json") for number in count(1)):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError as error:
            if given:
                raise UsageError(f"--report: {path} exists: name another file, or continue it: --continue") from error
        except OSError as error:
            where = f"{path.absolute().parent}: {(error.strerror or str(error)).lower()}"
            raise UsageError(f"cannot create the report in {where}", "name a file with --report") from error
        else:
            return path
    raise AssertionError("unreachable")


def read(path: Path) -> CleanReport:
    try:
        return CleanReport.read(parse_json(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"--continue: cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    except ValueError as error:
        raise UsageError(f"--continue: {path}: {error}") from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other runs from this report during the block.

    The lock is a file beside the report, because each write replaces the report. It is removed while it is locked:
    whoever opened it before looks whether it is still there.
    """
    file = path.resolve()  # another run may come by a link
    lock = file.with_name(f".{file.name}.lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UsageError(f"cannot create {lock}: {(error.strerror or str(error)).lower()}") from error
    try:
        if not _is_locked(handle, lock):
            raise UsageError(f"{path} is used by another run of this command: wait until it has ended")
        try:
            yield
        finally:
            with suppress(OSError):  # its directory may be gone
                lock.unlink()
    finally:
        os.close(handle)


def _is_locked(handle: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(handle), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        raise UsageError(f"cannot lock {path}: {(error.strerror or str(error)).lower()}") from error
