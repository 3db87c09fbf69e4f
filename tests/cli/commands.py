"""A small node in a directory, and commands on it: in this process, or in one of their own."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import Any

from agent.cli import main
from tests.fakes.host import write_sockets
from tests.wire import ID, Answer, Answers, FakeServer, Request, hang, http, kubeconfig, until

DONE, FOUND, USAGE, UNAVAILABLE, FAILED, INTERRUPTED, BLOCKED, NO_DAEMON, BUG, OUTPUT = (
    *range(7),
    69,
    70,
    74,
)
"""Exit codes, as the help has them."""
LEAKED = "f" * 64
AGENT = (sys.executable, "-m", "agent")


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str
    seconds: float = 0.0

    @property
    def said(self) -> str:
        """The output as one line: sentences may be broken anywhere."""
        return " ".join(self.out.split())

    def shows(self, code: int, *texts: str) -> None:
        """Check the exit code, and that the output has these texts, in whatever lines."""
        missing = [text for text in texts if text not in self.out and text not in self.said]
        assert (self.code, missing) == (code, []), self

    def fails(self, code: int, *texts: str) -> None:
        """Check the exit code, and that the errors have these texts and there is no output."""
        assert (self.code, self.out, [text for text in texts if text not in self.err]) == (
            code,
            "",
            [],
        ), self


@dataclass
class SmallNode:
    """A node in a directory: one pod, one leak, a fake docker, and a process table with a kubelet."""

    home: Path
    docker: FakeServer
    reserved: Mapping[str, str] = field(
        default_factory=lambda: {"10.244.1.2": ID, "10.244.1.9": LEAKED}
    )
    options: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        networks, cache, checkpoints = (
            self.home / "networks",
            self.home / "cache",
            self.home / "sandbox",
        )
        for directory in (networks / "kubenet", networks / "cbr0", cache, checkpoints):
            directory.mkdir(parents=True)
        for ip, container_id in self.reserved.items():
            path = networks / "kubenet" / ip
            path.write_text(f"{container_id}\r\neth0")
            os.utime(path, (1_700_000_000, 1_700_000_000))
        (cache / f"kubenet-{ID}-eth0").write_text(json.dumps({"ip4": {"ip": "10.244.1.2/24"}}))
        (checkpoints / ID).write_text('{"name": "web-0", "namespace": "shop"}')
        self.proc = self.home / "proc"
        random = self.proc / "sys/kernel/random"
        random.mkdir(parents=True)
        (random / "boot_id").write_text("b-1\n")
        (self.proc / "stat").write_text("btime 1700000000\n")
        write_sockets(self.proc)
        self.process(7, "dockerd")
        self.process(8, "kubelet")
        # Nothing of the real machine is read: it may have the sockets of a kubelet.
        self.options = [
            *(
                "--device-plugins-dir",
                str(self.home / "device-plugins"),
                "--state-dir",
                str(self.home / "state"),
            ),
            *(
                "--cni-networks-dir",
                str(networks),
                "--cni-cache-dir",
                str(cache),
                "--checkpoint-dir",
                str(checkpoints),
            ),
            *("--docker-host", self.docker.url, "--proc", str(self.proc), "--confirm-after", "1ms"),
        ]

    def process(
        self, pid: int, command: str, *words: str, ip: str = "10.244.1.1", ago: int | None = None
    ) -> None:
        """Write a process that started so many seconds ago, in place of any other; None: long ago.

        Without words its command line is not readable.
        """
        now = time.time()  # noqa: TID251 (the agent is a process, and reads the real clock)
        start = 50 if ago is None else int((now - 1_700_000_000 - ago) * os.sysconf("SC_CLK_TCK"))
        directory = self.proc / str(pid)
        shutil.rmtree(directory, ignore_errors=True)
        (directory / f"task/{pid}/net").mkdir(parents=True)
        (directory / f"task/{pid}/net/fib_trie").write_text(
            f"Main:\n  |-- {ip}\n     /32 host LOCAL\n"
        )
        (directory / "stat").write_text(f"{pid} ({command}) S {'0 ' * 18}{start} 0\n")
        (directory / "mountinfo").touch()
        if words:
            (directory / "comm").write_text(f"{command}\n")
            (directory / "cmdline").write_text("".join(f"{word}\0" for word in words))
            (directory / "root").symlink_to(self.home)


CONTAINER = {
    "Id": ID,
    "State": "running",
    "Created": 1_700_000_000,
    "Labels": {
        "io.kubernetes.pod.name": "web-0",
        "io.kubernetes.pod.namespace": "shop",
        "io.kubernetes.docker.type": "podsandbox",
    },
}


def docker(listed: Sequence[Any]) -> Answers:
    """A fake docker with these containers."""

    def answers(request: Request) -> Answer:
        asked = request.path.split("/")[-2]
        if len(asked) == len(ID) and asked not in [one["Id"] for one in listed]:
            return [http(json.dumps({"message": f"No such container: {asked}"}), "404 Not Found")]
        return [
            http('{"ApiVersion": "1.41"}' if request.path == "/version" else json.dumps(listed))
        ]

    return answers


engine = docker([CONTAINER])  # A fake docker with one sandbox


@contextmanager
def api_server(directory: Path, answers: Answers) -> Iterator[list[str]]:
    """Return the options for a fake API server."""
    with FakeServer(answers) as server:
        yield [
            "--node",
            "worker-1",
            "--kubeconfig",
            str(kubeconfig(directory / "kubeconfig", server.url)),
        ]


@contextmanager
def hanging_api(directory: Path) -> Iterator[list[str]]:
    server: FakeServer = FakeServer(lambda _: hang(server))
    with server:
        yield [
            "--node",
            "worker-1",
            "--kubeconfig",
            str(kubeconfig(directory / "kubeconfig", server.url)),
        ]


def no_objects(_: Request) -> Answer:
    """An API server without any objects."""
    return [http('{"metadata":{"resourceVersion":"5"},"items":[]}')]


def environment(more: dict[str, str]) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    # The addresses of a node in a directory may be those of real pods on this machine.
    return {**kept, "PYTHONPATH": str(Path(__file__).parents[2]), "NODELEAK_PROBE": "off", **more}


def nodeleak(*arguments: str, given: str = "", prefix: tuple[str, ...] = (), **more: str) -> Done:
    """Run a command to its end: in this process, or in one of its own after a prefix, such as `env`."""
    start = time.perf_counter()
    if prefix or arguments[:1] == ("run",):
        done = subprocess.run(  # noqa: S603 (ours)
            [*prefix, *AGENT, *arguments], env=environment(more), input=given, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        code, out, err = done.returncode, done.stdout, done.stderr
    else:
        code, out, err = _in_process(arguments, given, environment(more))
    assert "Traceback" not in err, err
    return Done(code, out, err, time.perf_counter() - start)


def options_of(command: str) -> dict[str, str]:
    """Return the help of each option of a command, settings too."""
    page = nodeleak(command, "--help-all").out
    if not page:  # it has no settings
        page = nodeleak(command, "--help").out
    texts = re.split(
        r"^  (?:-\w(?: \S+)?, )?--(?=[a-z])", page.partition("\nexamples:")[0], flags=re.MULTILINE
    )[1:]
    return {f"--{text.split(maxsplit=1)[0]}": " ".join(text.split()) for text in texts}


def _in_process(
    arguments: Sequence[str], given: str, environ: Mapping[str, str]
) -> tuple[int, str, str]:
    encoding = environ.get("PYTHONIOENCODING", "utf-8")
    out, err, stdin, before = (
        TextIOWrapper(BytesIO(), encoding),
        StringIO(),
        sys.stdin,
        dict(os.environ),
    )
    os.environ.clear()
    os.environ.update(environ)
    sys.stdin = StringIO(given)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(arguments)
    finally:
        sys.stdin = stdin
        os.environ.clear()
        os.environ.update(before)
    out.seek(0)
    return code, out.read(), err.getvalue()


class Daemon:
    """A running daemon, and its log lines so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.lines.extend(iter(self.process.stderr.readline, ""))

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def log_event(self, event: str) -> dict[str, Any]:
        """Wait for a log line."""
        until(
            lambda: event in [one["event"] for one in self.events], f"{event}, but {self.lines}", 20
        )
        return next(one for one in self.events if one["event"] == event)

    def handles_sigterm(self) -> bool:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
        return bool(int(caught, 16) & 1 << (signal.SIGTERM - 1))

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal; return the exit code."""
        code = self.stop(number)
        assert "Traceback" not in "".join(self.lines), self.lines
        return code

    def stop(self, number: signal.Signals) -> int:
        """Send a signal, and read all that it logs; return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(20)
        self._reader.join()  # before its pipe is closed
        return code


@contextmanager
def running(
    *arguments: str, prefix: tuple[str, ...] = (), program: tuple[str, ...] = ()
) -> Iterator[Daemon]:
    """Start a daemon, and kill it at the end. `program`: what runs it, if not this Python."""
    process = subprocess.Popen(  # noqa: S603 (ours)
        [*prefix, *(program or AGENT), "run", *arguments],
        env=environment({}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        daemon = Daemon(process)
        try:
            yield daemon
        finally:
            daemon.stop(signal.SIGKILL)


def served(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def syncs(port: int) -> float:
    """Return how many syncs a daemon has finished."""
    found = re.search(
        r"^nodeleak_sync_seconds_count (\S+)$", served(port, "/metrics")[1], re.MULTILINE
    )
    return float(found[1]) if found else 0
