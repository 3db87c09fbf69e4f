"""A real file system (FUSE) whose disk hangs where a test wants: each operation is done on a directory behind it.

`SlowDisk.hang("write", 2)`: the second write from now, and everything after it, is done and answered only after `go()`.
"""

import ctypes
import errno
import os
import struct
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

from tests.wire import needs

_OPERATIONS: Final = {"create": 35, "mkdir": 9, "open": 14, "read": 15, "write": 16, "fsync": 20}
_FORGET, _BATCH_FORGET, _INTERRUPT = 2, 42, 36
_TRUNCATES = 1 << 3


class SlowDisk:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def hang(self, operation: str, count: int = 1) -> None:
        self._tell(f"hang {operation} {count}")
        self.wait("will hang")

    def go(self) -> None:
        self._tell("go")
        self.wait("goes on")

    def wait(self, what: str = "hangs") -> None:
        """Wait until the operation hangs."""
        while self._lines.get(timeout=30) != what:
            pass

    def _tell(self, what: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self._lines.put(line.strip())


@contextmanager
def slow_disk(at: Path, behind: Path, *prefix: str) -> Iterator[SlowDisk]:
    """Mount it at a directory, in the mount namespace of this process. `prefix`: of the command, for another one."""
    needs(os.geteuid() == 0 and Path("/dev/fuse").exists(), "root and /dev/fuse, to mount a disk")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = (*prefix, sys.executable, "-m", "tests.cleanup.slow_disk", str(at), str(behind))
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:  # noqa: S603
        try:
            disk = SlowDisk(process)
            disk.wait("mounted")
            yield disk
        finally:
            process.kill()  # whatever still hangs fails


class _Server:
    """The kernel's protocol is in linux/fuse.h."""

    def __init__(self, fuse: int, behind: Path) -> None:
        self._fuse, self._paths = fuse, {0: behind, 1: behind}
        self._hang_at, self._before = 0, 0
        self._held: list[bytes] | None = None
        self._lock = threading.Lock()
        self._answers: dict[int, Callable[[Path, bytes], bytes]] = {
            1: lambda at, body: self._entry(at / _name(body)),
            3: lambda at, _: struct.pack("<QII", 0, 0, 0) + self._attributes(at),
            4: self._set,
            9: self._make_directory,
            12: self._rename,
            14: lambda _, __: bytes(16),
            15: self._read,
            16: self._write,
            17: lambda _, __: struct.pack("<5Q4I24x", 9999, 9999, 9999, 9999, 9999, 4096, 255, 4096, 0),
            18: lambda _, __: b"",
            20: lambda _, __: b"",
            25: lambda _, __: b"",
            26: lambda _, __: struct.pack("<IIIIHHIIHHI28x", 7, 31, 65536, 0, 12, 9, 65536, 1, 0, 0, 0),
            27: lambda _, __: bytes(16),
            29: lambda _, __: b"",
            30: lambda _, __: b"",
            35: self._create,
        }

    def command(self, words: list[str]) -> None:
        with self._lock:
            if words[0] == "hang":
                self._hang_at, self._before = _OPERATIONS[words[1]], int(words[2])
                _say("will hang")
                return
            held, self._held, self._hang_at = self._held or [], None, 0
            for request in held:
                self._answer(request)
            _say("goes on")

    def serve(self) -> None:
        try:
            self._serve()
        except BaseException:  # noqa: BLE001 (whatever it is)
            traceback.print_exc()
            os._exit(1)  # what still waits fails, instead of hanging the tests

    def _serve(self) -> None:
        while True:
            request = os.read(self._fuse, 256 * 1024)
            (operation,) = struct.unpack_from("<I", request, 4)
            if operation in {_FORGET, _BATCH_FORGET, _INTERRUPT}:
                continue
            with self._lock:
                self._before -= operation == self._hang_at
                if self._held is None and self._hang_at and not self._before:
                    self._held = []
                    _say("hangs")
                if self._held is None:
                    self._answer(request)
                else:
                    self._held.append(request)

    def _answer(self, request: bytes) -> None:
        _, operation, unique, node = struct.unpack_from("<IIQQ", request)
        code, body = 0, b""
        try:
            body = self._answers.get(operation, _not_supported)(self._paths[node], request[40:])
        except OSError as error:
            code = -(error.errno or errno.EIO)
        with suppress(FileNotFoundError):  # whoever asked was killed
            os.write(self._fuse, struct.pack("<IiQ", 16 + len(body), code, unique) + body)

    def _attributes(self, path: Path) -> bytes:
        at = path.lstat()
        times = [int(one) for one in (at.st_atime, at.st_mtime, at.st_ctime)]
        parts = [one % 10**9 for one in (at.st_atime_ns, at.st_mtime_ns, at.st_ctime_ns)]
        rest = (at.st_mode, at.st_nlink, at.st_uid, at.st_gid, 0, 4096, 0)
        return struct.pack("<6Q3I7I", at.st_ino, at.st_size, at.st_blocks, *times, *parts, *rest)

    def _entry(self, path: Path) -> bytes:
        attributes = self._attributes(path)
        node = next((one for one, known in self._paths.items() if known == path), len(self._paths) + 1)
        self._paths[node] = path
        return struct.pack("<4QII", node, 0, 0, 0, 0, 0) + attributes

    def _set(self, path: Path, body: bytes) -> bytes:
        valid, _, _, size = struct.unpack_from("<IIQQ", body)
        if valid & _TRUNCATES:
            os.truncate(path, size)
        return struct.pack("<QII", 0, 0, 0) + self._attributes(path)

    def _make_directory(self, path: Path, body: bytes) -> bytes:
        child = path / _name(body[8:])
        child.mkdir(mode=struct.unpack_from("<I", body)[0])
        return self._entry(child)

    def _create(self, path: Path, body: bytes) -> bytes:
        child = path / _name(body[16:])
        os.close(os.open(child, os.O_CREAT | os.O_RDWR, struct.unpack_from("<I", body, 4)[0]))
        return self._entry(child) + bytes(16)

    def _rename(self, path: Path, body: bytes) -> bytes:
        older, newer = (one.decode() for one in body[8:].split(b"\0")[:2])
        source, target = path / older, self._paths[struct.unpack_from("<Q", body)[0]] / newer
        source.rename(target)
        self._paths = {node: target if known == source else known for node, known in self._paths.items()}
        return b""

    def _read(self, path: Path, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        return path.read_bytes()[offset : offset + size]

    def _write(self, path: Path, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<QQI", body)
        with path.open("r+b") as file:
            file.seek(offset)
            file.write(body[40 : 40 + size])
        return struct.pack("<II", size, 0)


def _name(body: bytes) -> str:
    return body.split(b"\0")[0].decode()


def _not_supported(_: Path, __: bytes) -> bytes:
    raise OSError(errno.ENOSYS, "not supported")


def _say(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main(at: str, behind: str) -> None:
    fuse = os.open("/dev/fuse", os.O_RDWR)
    libc: Any = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"fuse", at.encode(), b"fuse", 0, f"fd={fuse},rootmode=40000,user_id=0,group_id=0".encode()):
        raise OSError(ctypes.get_errno(), "mount")
    server = _Server(fuse, Path(behind))
    threading.Thread(target=server.serve, daemon=True).start()
    _say("mounted")
    for line in sys.stdin:
        server.command(line.split())
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
