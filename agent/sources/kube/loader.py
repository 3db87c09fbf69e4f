"""Reads the credentials for the API server: in time, or not at all.

Reading them can take for ever: a plugin asks a cloud, a file is on a mount that hangs, or is a
FIFO. So they are read in a thread of their own, in which one attempt at a time waits: everybody who
needs credentials meanwhile shares it.
"""

import os
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

from agent.deadline import in_thread
from agent.sources.deadline import Late
from agent.sources.kube import service_account
from agent.sources.kube.credentials import Credentials, NoCredentials
from agent.sources.source_error import SourceError

_SLACK: Final = 2.0
"""Seconds more for everything than for the plugin, which has the better message."""


@cache
def loader(kubeconfig: Path | None, seconds: float) -> "Loader":
    """Return the one loader of this process for these credentials: so at most one plugin runs."""
    return Loader(kubeconfig, seconds)


class Loader:
    """Reads credentials anew for each connection: they may have been rotated. Thread-safe."""

    def __init__(self, kubeconfig: Path | None, seconds: float) -> None:
        """`kubeconfig`: None for the pod's service account, or else $KUBECONFIG.

        `seconds`: how long a plugin has.
        """
        self._kubeconfig = kubeconfig
        self._seconds = seconds
        self._lock = Lock()
        self._attempt: Future[Credentials] | None = None
        self._late: Future[Credentials] | None = None
        """The attempt that has been waited for in vain."""
        self._where = ""
        """What the attempt reads, for messages, as what it does now."""
        self._step = ""

    def load(self) -> Credentials:
        """Return the credentials; raises NoCredentials; SourceError if late, or by a plugin."""
        seconds = self._seconds + _SLACK
        with self._lock:
            if self._attempt is None or self._attempt.done():
                self._attempt = in_thread("credentials", self._choose_source(), SourceError)
            attempt = self._attempt

        if attempt is not self._late:
            wait([attempt], seconds)
        if not attempt.done():
            self._late = attempt  # it is not waited for again
            raise Late(f"{self._where}: still {self._step} after {seconds:g} s")
        return attempt.result()

    def _choose_source(self) -> Callable[[], Credentials]:
        """Return what reads the credentials; raises NoCredentials if there are none anywhere."""
        if self._kubeconfig is None and service_account.is_mounted():
            self._where = str(service_account.DIRECTORY)
            self._step = "reading the service account"
            return lambda: service_account.read_service_account(self._seconds)

        where = str(self._kubeconfig or os.environ.get("KUBECONFIG") or "")
        if not where:
            raise NoCredentials(
                "no service account is mounted, and neither --kubeconfig nor KUBECONFIG is set"
            )
        from agent.sources.kube.kubeconfig import read_kubeconfig  # noqa: PLC0415 (15 MiB)

        self._where = where
        return lambda: read_kubeconfig(where, self._seconds, self._set_step)

    def _set_step(self, step: str) -> None:
        self._step = step
