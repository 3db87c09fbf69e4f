"""The operator's own kubectl, as a child process: it knows contexts, credential plugins, proxies and impersonation."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Lock
from typing import Final

from agent.fleet.answers import Answer, answer_of
from agent.fleet.inventory import Agent

LOGIN_SECONDS: Final = 900
"""For a list, on a terminal: somebody may have to log in there. The codes of such logins last as long."""
_LISTS: Final = 3
"""A list may take so many times as long as one node: kubectl reads 500 objects at a time."""


class KubectlError(Exception):
    """kubectl could not be run, or failed after it has printed why; or Prometheus did not answer."""


class Kubectl:
    """Thread-safe."""

    def __init__(self, *options: str, timeout: float) -> None:
        """`options`: how to reach the cluster, such as `--context=staging`. `timeout`: seconds for one node."""
        self._options, self._timeout = options, timeout
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._canceled = Event()

    def context(self) -> str:
        """Return the name of the current context; empty without one, as in a pod."""
        code, output = self._print("read the current context", ["config", "current-context", *self._options])
        return "" if code else output.strip()

    def get(self, *arguments: str) -> str:
        """Return what `kubectl get` prints. Its errors, and prompts of a credential plugin, go to the terminal."""
        return self._get(f"list {arguments[0]}", arguments)

    def raw(self, path: str) -> str:
        """Return what the API server answers on a path."""
        arguments = ("--raw", path, f"--request-timeout={self._timeout:g}s")
        return self._get("ask the API server", arguments)

    def _get(self, what: str, arguments: Sequence[str]) -> str:
        code, output = self._print(what, ["get", *self._options, *arguments], may_log_in=_on_terminal())
        if code:
            raise KubectlError(f"cannot {what}: kubectl ended with exit code {code}, see above")
        return output

    def _print(self, what: str, arguments: Sequence[str], *, may_log_in: bool = False) -> tuple[int, str]:
        """Return the exit code and what was printed; raises KubectlError if kubectl does not run or end.

        `may_log_in`: a credential plugin can ask on the terminal, and somebody needs time to answer.
        """
        seconds = max(_LISTS * self._timeout, LOGIN_SECONDS if may_log_in else 0)
        command = ["kubectl", *arguments]
        try:
            # Only the session of the terminal can read from it.
            with self._child(command, errors=None, stdin=None, own_session=not may_log_in) as child:
                output, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise KubectlError(f"cannot {what}: kubectl did not end within {seconds:g} s") from None
        except OSError as error:
            raise KubectlError(f"cannot run kubectl: {error.strerror}: install it, or add it to PATH") from error
        return child.returncode, output.decode(errors="replace")

    def execute(self, agent: Agent, arguments: Sequence[str], timeout: float) -> Answer:
        """Run a command of the agent in its pod. `timeout`: seconds until it must have ended."""
        pod = ["exec", *self._options, "--namespace", agent.namespace, agent.pod, "--container", agent.container]
        try:
            with self._child(["kubectl", *pod, "--", "nodeleak", *arguments]) as child:
                output, errors = (text.decode(errors="replace") for text in child.communicate(timeout=timeout))
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
    def _child(
        self,
        command: Sequence[str],
        *,
        stdin: int | None = subprocess.DEVNULL,
        errors: int | None = subprocess.PIPE,
        own_session: bool = True,
    ) -> Iterator["subprocess.Popen[bytes]"]:
        with self._lock:
            # In its own session: Ctrl-C must not end a release whose result is not known yet, and a credential plugin
            # that hangs ends with its kubectl.
            child = subprocess.Popen(  # noqa: S603 (the operator's own kubectl)
                command,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=own_session,
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


def _kill(child: "subprocess.Popen[bytes]") -> None:
    """End it, and all of its session if it has one of its own."""
    if child.poll() is None:
        with suppress(ProcessLookupError):
            if os.getpgid(child.pid) == child.pid:
                os.killpg(child.pid, signal.SIGKILL)
            else:
                child.kill()


def _on_terminal() -> bool:
    return os.isatty(0) or os.isatty(2)
