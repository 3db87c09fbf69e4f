"""Shared by the tests of sources: a server that sends exactly the given bytes, and the ways to reach it."""

import contextlib
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest

from agent.sources.source_error import SourceError

NOBODY = 65534
ID = "0123456789abcdef" * 4  # A container id, for tests that need only one


def error_of(question: Callable[[], object]) -> str:
    """Return why a question to a source has no answer."""
    with pytest.raises(SourceError) as raised:
        question()
    text = str(raised.value)
    assert len(text) < 400, "an operator reads this in one line"
    assert "\n" not in text
    return text


def needs(met: bool, what: str) -> None:
    """Skip a test that cannot run here, in one loud line of the summary; where CI=true, it fails."""
    if not met and os.environ.get("CI") == "true":
        pytest.fail(f"it needs {what}")
    if not met:
        pytest.skip(f"DID NOT RUN: it needs {what}")


def only_with(met: bool, what: str) -> None:
    """Skip a test of what this machine, node or run need not have: another runtime, a newer kernel, many minutes."""
    if not met:
        pytest.skip(f"only with {what}")


@contextlib.contextmanager
def as_nobody() -> Iterator[None]:
    """Run the block as an unprivileged user; no change if the tests already run as one."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@contextlib.contextmanager
def open_directory() -> Iterator[Path]:
    """Create a directory that an unprivileged user can reach: tmp_path is private to its owner."""
    directory = Path(tempfile.mkdtemp(prefix="nodeleak-test-"))
    directory.chmod(0o755)
    try:
        yield directory
    finally:
        for closed in directory.iterdir():
            if closed.is_dir():
                closed.chmod(0o755)
        shutil.rmtree(directory)


@dataclass(frozen=True, slots=True)
class Request:
    target: str
    headers: dict[str, str] = field(default_factory=dict)
    method: str = "GET"
    body: bytes = b""  # As long as Content-Length; shorter if the connection ended first

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    @property
    def watches(self) -> bool:
        return "watch=1" in self.target


Answer = Iterable[bytes]
Answers = Callable[[Request], Answer]


class Listener:
    """Serves each connection in a thread of its own while the block runs; subclasses implement `serve`."""

    def __init__(self, at: Path | None) -> None:
        """`at`: a unix socket; None: a port of loopback."""
        self.closing = threading.Event()
        if at is None:
            self._socket = socket.create_server(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{self._socket.getsockname()[1]}"
        else:
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(str(at))
            self._socket.listen()
            self.address = str(at)
        self._thread = threading.Thread(target=self._accept, name="fake server")

    def serve(self, connection: socket.socket) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        # close() alone does not wake a blocked accept().
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        threads: list[threading.Thread] = []
        while not self.closing.is_set():
            try:
                connection, _ = self._socket.accept()
            except OSError:
                break
            connection.settimeout(20)
            threads.append(threading.Thread(target=self.serve, args=(connection,)))
            threads[-1].start()
        for thread in threads:
            thread.join()


class FakeServer(Listener):
    """A server that sends exactly the given bytes, because no real server misbehaves on demand.

    One request per connection; the connection ends with the answer. `answers` may block on `closing`, to hang.
    """

    def __init__(
        self, answers: Answers, *, at: Path | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(at)
        self.answers = answers
        self.requests: list[Request] = []
        self._tls = tls
        scheme = "unix" if at else "https" if tls else "http"
        self.url = f"{scheme}://{self.address}"

    def requested(self, part: str) -> list[str]:
        """Return the requested targets that contain a text, in order."""
        return [request.target for request in self.requests if part in request.target]

    def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            wrapped = (
                self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            )
            with wrapped:
                request = _read_request(wrapped)
                if request is None:
                    return
                self.requests.append(request)
                for piece in self.answers(request):
                    wrapped.sendall(piece)


class KeepAliveServer(FakeServer):
    """Sends whole answers, and leaves the connection open for the next request; counts
    connections."""

    def __init__(self, answers: Answers, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(answers, tls=tls)
        self.connections: list[list[Request]] = []
        """Those that were accepted, by what was requested on them."""

    def serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            wrapped = (
                self._tls.wrap_socket(connection, server_side=True) if self._tls else connection
            )
            requests: list[Request] = []
            self.connections.append(requests)
            with wrapped:
                while (request := _read_request(wrapped, self.closing)) is not None:
                    requests.append(request)
                    self.requests.append(request)
                    is_last = request.headers.get("connection") == "close"
                    for piece in self.answers(request):
                        kept = piece.replace(b"Connection: close\r\n", b"")
                        wrapped.sendall(piece if is_last else kept)
                    if is_last:
                        return


def _read_request(
    connection: socket.socket, closing: threading.Event | None = None
) -> Request | None:
    """Read a request; None: the client has closed the connection, or the server is `closing`."""
    received = b""
    while b"\r\n\r\n" not in received:
        if closing:
            connection.settimeout(0.1)
        try:
            more = connection.recv(65536)
        except TimeoutError:
            if closing is None or closing.is_set():
                raise
            continue
        if not more:
            return None
        received += more
        if received.startswith(b"\x16"):
            return Request("a handshake of TLS")
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")) and (more := connection.recv(65536)):
        body += more
    method, target, _ = first.split(" ")
    return Request(target, headers, method, body)


def http(body: bytes | str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """Format a complete response."""
    content = body if isinstance(body, bytes) else body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    return head.encode() + content


CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"  # noqa: E501
LAST_CHUNK = b"0\r\n\r\n"
HTML = (
    "<html><head><title>502 Bad Gateway</title></head><body>"
    + "<p>nginx</p>" * 100
    + "</body></html>"
)


def chunk(body: bytes | str) -> bytes:
    content = body if isinstance(body, bytes) else body.encode()
    return b"%x\r\n%b\r\n" % (len(content), content)


def hang(server: FakeServer) -> Iterator[bytes]:
    """Send nothing until the test is over."""
    server.closing.wait(30)
    yield b""


def kubeconfig(at: Path, url: str, *, user: str = "{}", cluster: str = "") -> Path:
    """Write a kubeconfig for an API server; `user` and `cluster` are one-line YAML."""
    at.write_text(f"""\
apiVersion: v1
kind: Config
current-context: here
contexts: [{{name: here, context: {{cluster: here, user: us}}}}]
clusters: [{{name: here, cluster: {{server: "{url}"{", " if cluster else ""}{cluster}}}}}]
users: [{{name: us, user: {user}}}]
""")
    return at


def run(*command: str, environment: dict[str, str] | None = None, given: str = "") -> str:
    """Run a command that must succeed, and return its output."""
    done = subprocess.run(  # noqa: S603
        command, env=environment, input=given, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{done.stdout}"
    return done.stdout


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """Hold a port on which nobody listens: one that was closed may become another test's."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def self_signed(directory: Path) -> tuple[ssl.SSLContext, Path]:
    """Create a self-signed certificate for 127.0.0.1."""
    openssl = shutil.which("openssl")
    needs(openssl is not None, "openssl, to make a certificate")
    certificate, key = directory / "server.crt", directory / "server.key"
    run(
        *(
            str(openssl),
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ),
        *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
        *("-keyout", str(key), "-out", str(certificate)),
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context, certificate


def established(port: int) -> set[str]:
    """Return the clients' ends of the established connections to a port of 127.0.0.1."""
    lines = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    return {
        remote
        for _, local, remote, state, *_ in lines
        if local == f"0100007F:{port:04X}" and state == "01"
    }


def until(true: Callable[[], Any], what: str, seconds: float = 20.0) -> None:
    """Wait until another thread or process makes a condition true."""
    pause = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if true():
            return
        pause.wait(0.01)
    pytest.fail(f"this did not happen within {seconds:.0f} s: {what}")
