"""The operator's own kubectl, as a child process: it knows contexts, credential plugins, proxies and impersonation."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from selectors import EVENT_READ, BaseSelector, DefaultSelector
from threading import Event, Lock, Timer
from typing import Final

from agent.fleet.answers import Answer, answer_of
from agent.fleet.inventory import Agent
from agent.model.input_limit import InputLimit

LARGEST: Final[InputLimit] = 16 << 20
"""Bytes of each output of a pod. A scan of 65,000 addresses as JSON is as long, and 20 nodes are asked at once."""
LARGEST_ANSWER: Final[InputLimit] = 256 << 20
"""Bytes of a list, or of an answer of Prometheus: that of 15,000 agents has 28 MiB."""
_CHUNK: Final = 1 << 16
_OFTEN: Final = 0.2
"""Seconds after which a timeout is noticed."""


class _TooLong(Exception):
    """A pod printed more than anybody reads."""


class KubectlError(Exception):
    """kubectl could not be run, or failed after it has printed why; or Prometheus did not answer."""


class Kubectl:
    """Thread-safe."""

    def __init__(self, *options: str) -> None:
        """`options`: how to reach the cluster, such as `--context=staging`."""
        self._options = options
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._canceled = Event()

    def context(self) -> str:
        """Return the name of the current context; empty without one, as in a pod."""
        command = ["kubectl", "config", "current-context", *self._options]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()  # noqa: S603
        except OSError:
            return ""

    def get(self, *arguments: str) -> str:
        """Return what `kubectl get` prints. Its errors, and prompts of a credential plugin, go to the terminal."""
        command = ["kubectl", "get", *self._options, *arguments]
        raw = arguments[0] == "--raw"
        what = "ask the API server" if raw else f"list {arguments[0]}"
        try:
            with subprocess.Popen(command, stdout=subprocess.PIPE) as child:  # noqa: S603 (the operator's own kubectl)
                output = child.stdout.read(LARGEST_ANSWER + 1) if child.stdout else b""
                if len(output) > LARGEST_ANSWER:
                    child.kill()
                    fewer = "add --prometheus-cluster" if raw else "choose fewer with -l or --namespace"
                    raise KubectlError(f"cannot {what}: the answer is longer than {LARGEST_ANSWER >> 20} MiB: {fewer}")
        except OSError as error:
            raise KubectlError(f"cannot run kubectl: {error.strerror}: install it, or add it to PATH") from error
        if child.returncode:
            raise KubectlError(f"cannot {what}: kubectl ended with exit code {child.returncode}, see above")
        return output.decode(errors="replace")

    def raw(self, path: str, timeout: float) -> str:
        """Return what the API server answers on a path. `timeout`: seconds."""
        return self.get("--raw", path, f"--request-timeout={timeout:g}s")

    def execute(self, agent: Agent, arguments: Sequence[str], timeout: float) -> Answer:
        """Run a command of the agent in its pod. `timeout`: seconds until it must have ended."""
        pod = ["exec", *self._options, "--namespace", agent.namespace, agent.pod, "--container", agent.container]
        try:
            with self._child(["kubectl", *pod, "--", "nodeleak", *arguments]) as child:
                output, errors = _read(child, timeout)
        except _TooLong:
            why = f"its output is longer than {LARGEST >> 20} MiB: run the command in its pod: {agent.name}"
            return Answer(agent.node, None, "", why)
        except subprocess.TimeoutExpired:
            return Answer(agent.node, None, "", f"no answer within {timeout:g} s")
        except OSError as error:
            return Answer(agent.node, None, "", f"cannot run kubectl: {error.strerror}")
        if self._canceled.is_set():
            return Answer(agent.node, None, "", "interrupted before it answered")
        return answer_of(agent.node, child.returncode, output, errors)

    def cancel(self) -> None:
        """End every command. What it started in a pod may go on there."""
        self._canceled.set()
        with self._lock:
            for child in self._running:
                _kill(child)

    @contextmanager
    def _child(self, command: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
        with self._lock:
            # In its own session: Ctrl-C must not end a release whose result is not known yet, and a credential plugin
            # that hangs ends with its kubectl.
            child = subprocess.Popen(  # noqa: S603 (the operator's own kubectl)
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
            self._running.add(child)
        if self._canceled.is_set():
            _kill(child)
        try:
            yield child
        finally:
            with self._lock:
                self._running.discard(child)
            _kill(child)
            with child:  # closes its pipes, and waits for it
                pass


def _read(child: "subprocess.Popen[bytes]", timeout: float) -> tuple[str, str]:
    """Return both outputs when the command has ended; raises _TooLong or TimeoutExpired."""
    timer = Timer(timeout, lambda: None)
    timer.daemon = True
    timer.start()
    found = {pipe.fileno(): bytearray() for pipe in (child.stdout, child.stderr) if pipe}
    try:
        with DefaultSelector() as selector:
            for pipe in found:
                selector.register(pipe, EVENT_READ)
            while selector.get_map():
                if not timer.is_alive():
                    raise subprocess.TimeoutExpired(child.args, timeout)
                for key, _ in selector.select(_OFTEN):
                    _take(selector, key.fd, found[key.fd])
        child.wait(timeout)
    finally:
        timer.cancel()
    output, errors = (one.decode(errors="replace") for one in found.values())
    return output, errors


def _take(selector: BaseSelector, pipe: int, found: bytearray) -> None:
    if chunk := os.read(pipe, _CHUNK):
        found += chunk
    else:
        selector.unregister(pipe)
    if len(found) > LARGEST:
        raise _TooLong


def _kill(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
