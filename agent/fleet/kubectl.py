"""The operator's own kubectl, as a child process: it knows contexts, credential plugins, proxies and impersonation."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Lock

from agent.fleet.answers import Answer, answer_of
from agent.fleet.inventory import Agent


class KubectlError(Exception):
    """kubectl could not be run, or failed after it has printed why; or Prometheus did not answer."""


class Kubectl:
    """Thread-safe."""

    def __init__(self, *options: str) -> None:
        """`options`: how to reach the cluster, such as `--context=staging`."""
        self._options = options
        self._running: set[subprocess.Popen[str]] = set()
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
        try:
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, errors="replace", check=False)  # noqa: S603
        except OSError as error:
            raise KubectlError(f"cannot run kubectl: {error.strerror}: install it, or add it to PATH") from error
        if done.returncode:
            what = "ask the API server" if arguments[0] == "--raw" else f"list {arguments[0]}"
            raise KubectlError(f"cannot {what}: kubectl ended with exit code {done.returncode}, see above")
        return done.stdout

    def raw(self, path: str, timeout: float) -> str:
        """Return what the API server answers on a path. `timeout`: seconds."""
        return self.get("--raw", path, f"--request-timeout={timeout:g}s")

    def execute(self, agent: Agent, arguments: Sequence[str], timeout: float) -> Answer:
        """Run a command of the agent in its pod. `timeout`: seconds until it must have ended."""
        pod = ["exec", *self._options, "--namespace", agent.namespace, agent.pod, "--container", agent.container]
        try:
            with self._child(["kubectl", *pod, "--", "nodeleak", *arguments]) as child:
                output, errors = child.communicate(timeout=timeout)
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
    def _child(self, command: Sequence[str]) -> Iterator["subprocess.Popen[str]"]:
        with self._lock:
            # In its own session: Ctrl-C must not end a release whose result is not known yet, and a credential plugin
            # that hangs ends with its kubectl.
            child = subprocess.Popen(  # noqa: S603 (the operator's own kubectl)
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
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


def _kill(child: "subprocess.Popen[str]") -> None:
    if child.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
