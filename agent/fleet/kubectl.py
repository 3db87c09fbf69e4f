"""The operator's own kubectl as a child process.

It knows contexts, credential plugins, proxies and impersonation.
"""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from threading import Event
from typing import Final

from agent.cli.output import NoAnswer
from agent.fleet.nodes import Agent, Answer, KubeObject, answer_of

LOGIN_SECONDS: Final = 900
"""For a list, on a terminal: somebody may have to log in. The codes of such logins last as long."""

_LIST_FACTOR: Final = 3
"""A list may take so many times as long as one node: kubectl reads 500 objects at a time."""


class KubectlError(NoAnswer):
    """kubectl could not be run, or failed after it printed why; or Prometheus did not answer."""


class Kubectl:
    """Runs kubectl. Thread-safe."""

    def __init__(self, *options: str, timeout: float) -> None:
        """`options`: of the cluster, such as `--context=staging`. `timeout`: seconds for a node."""
        self._options = options
        self._timeout = timeout
        self._running: set[subprocess.Popen[str]] = set()
        self._canceled = Event()

    def context(self) -> str:
        """Return the name of the current context; empty without one, as in a pod."""
        what = "read the current context"
        code, output = self._print(what, ["config", "current-context", *self._options])
        return "" if code else output.strip()

    def get(self, *arguments: str) -> str:
        """Return what `kubectl get` prints. Raises KubectlError."""
        return self.output(f"list {arguments[0]}", "get", *arguments)

    def items(self, *arguments: str) -> list[KubeObject]:
        """Return the objects that `kubectl get` lists. Raises KubectlError."""
        items: list[KubeObject] = json.loads(self.get(*arguments, "--output=json"))["items"]
        return items

    def output(self, what: str, verb: str, *arguments: str, text: str = "") -> str:
        """Return what a command prints; errors and prompts go to the terminal. Raises KubectlError.

        `what` it does, for errors. `text`: its standard input.
        """
        may_log_in = not text and (os.isatty(0) or os.isatty(2))
        command = [verb, *self._options, *arguments]
        code, output = self._print(what, command, may_log_in=may_log_in, text=text)
        if code:
            raise KubectlError(f"cannot {what}: kubectl ended with exit code {code}, see above")
        return output

    def quiet(self, *command: str) -> str:
        """Return what a command prints; nothing if it fails. Nobody is asked to log in."""
        arguments = [*command, *self._options]
        try:
            code, output, _ = self._run(arguments, self._timeout, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return "" if code else output

    def _print(
        self, what: str, arguments: Sequence[str], *, may_log_in: bool = False, text: str = ""
    ) -> tuple[int, str]:
        """Return exit code and output; raises KubectlError.

        `may_log_in`: whether a credential plugin may ask on the terminal.
        """
        timeout = _LIST_FACTOR * self._timeout
        if may_log_in:
            timeout = max(timeout, LOGIN_SECONDS)

        try:
            return self._run(arguments, timeout, terminal=may_log_in, text=text)[:2]
        except subprocess.TimeoutExpired:
            raise KubectlError(f"cannot {what}: kubectl did not end within {timeout:g} s") from None
        except OSError as error:
            raise KubectlError(
                f"cannot run kubectl: {error.strerror}: install it, or add it to PATH"
            ) from error

    def execute(self, agent: Agent, arguments: Sequence[str]) -> Answer:
        """Run nodeleak with these arguments in the pod of an agent."""
        command = ["exec", *self._options, "--namespace", agent.namespace, agent.pod]
        command += ["--container", agent.container, "--", "nodeleak", *arguments]
        try:
            code, output, errors = self._run(command, self._timeout, stderr=subprocess.PIPE)
        except subprocess.TimeoutExpired:
            return Answer(agent.node, None, error=f"no answer within {self._timeout:g} s")
        except OSError as error:
            return Answer(agent.node, None, error=f"cannot run kubectl: {error.strerror}")
        return answer_of(agent.node, code, output, errors)

    def cancel(self) -> None:
        """End every command. What it started in a pod may go on there."""
        self._canceled.set()
        for child in list(self._running):
            _kill_session(child)

    def _run(
        self,
        arguments: Sequence[str],
        timeout: float,
        *,
        terminal: bool = False,
        stderr: int | None = None,
        text: str = "",
    ) -> tuple[int, str, str]:
        """Return exit code, output and errors; raises OSError and TimeoutExpired.

        Without a terminal, which only its own session can read, kubectl has another session: Ctrl-C
        must not end a release whose result is not known yet, and a credential plugin that hangs
        ends with its kubectl.
        """
        with subprocess.Popen(  # noqa: S603 (the operator's own kubectl)
            ["kubectl", *arguments],  # noqa: S607
            stdin=None if terminal else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=not terminal,
            encoding="utf-8",
            errors="replace",
        ) as child:
            self._running.add(child)
            if self._canceled.is_set():
                _kill_session(child)

            try:
                output, errors = child.communicate(text, timeout=timeout)
            except BaseException:
                child.kill() if terminal else _kill_session(child)
                raise
            finally:
                self._running.discard(child)
        return child.returncode, output, errors or ""


def _kill_session(child: "subprocess.Popen[str]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
