"""Where the credentials for the API server are, and how they are read: in time, or not at all.

Reading them can take for ever: a plugin asks a cloud, a file is on a mount that hangs, or is a
FIFO. So they are read in a thread of their own, in which one attempt at a time waits: everybody who
needs credentials meanwhile shares it.
"""

import base64
import os
from concurrent.futures import Future, wait
from datetime import datetime
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple

from kubernetes import client, config
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
from yaml import YAMLError  # type: ignore[import-untyped]

from agent.deadline import in_thread
from agent.model.text import truncate
from agent.sources.deadline import Deadline, Late
from agent.sources.kube.exec_plugin import run_plugin
from agent.sources.source_error import SourceError, describe_os_error

_IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (the client creates private files in it)
"""Where the certificates of a kubeconfig go, if possible."""
_SLACK: Final = 2.0
"""Seconds more for everything than for the plugin, which has the better message."""
_UNUSABLE: Final = (
    config.ConfigException,
    YAMLError,
    OSError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    RecursionError,
)


class NoCredentials(SourceError):
    """There are no credentials for an API server; the text says where they were expected."""


class Credentials(NamedTuple):
    """How to reach the API server, and as whom."""

    settings: Any
    """The `Configuration` of the client library."""
    expires: datetime | None
    """When a plugin's credentials expire; None: it did not say, or there is no plugin."""


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
        self._step = ""

    def load(self) -> Credentials:
        """Return the credentials; raises NoCredentials; SourceError if late, or by a plugin."""
        seconds = self._seconds + _SLACK
        with self._lock:
            if self._attempt is None or self._attempt.done():
                self._attempt = in_thread("credentials", self._read, SourceError)
            attempt = self._attempt
        if attempt is not self._late:
            wait([attempt], seconds)
        if not attempt.done():
            self._late = attempt  # it is not waited for again
            raise Late(f"{self._where()}: still {self._step} after {seconds:g} s")
        return attempt.result()

    def _where(self) -> str:
        if self._in_cluster():
            return str(_IN_CLUSTER.parent)
        return str(self._kubeconfig or os.environ.get("KUBECONFIG") or "")

    def _in_cluster(self) -> bool:
        in_pod = bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
        return self._kubeconfig is None and in_pod and _IN_CLUSTER.exists()

    def _read(self) -> Credentials:
        self._step = "looking for credentials"
        where = self._where()
        if not where:
            raise NoCredentials(
                "no service account is mounted, and neither --kubeconfig nor KUBECONFIG is set"
            )
        try:
            if self._in_cluster():
                return self._read_service_account()
            return self._read_kubeconfig(where)
        except _UNUSABLE as error:
            raise NoCredentials(f"cannot read {where}: {_why_unusable(where, error)}") from error

    def _read_service_account(self) -> Credentials:
        self._step = "reading the service account"
        settings = client.Configuration()
        config.load_incluster_config(settings)
        self._limit_refresh(settings)
        return Credentials(settings, None)

    def _read_kubeconfig(self, where: str) -> Credentials:
        self._step = "reading the file"
        merged = KubeConfigMerger(where).config
        memory = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
        kubeconfig = KubeConfigLoader(merged, config_base_path=None, temp_file_path=memory)
        expires = self._run_plugin(where, merged, kubeconfig.current_context["context"])
        self._step = "reading a file that it names, or asking its auth-provider"
        settings = client.Configuration()
        kubeconfig.load_and_set(settings)
        self._limit_refresh(settings)
        return Credentials(settings, expires)

    def _run_plugin(self, where: str, merged: Any, context: Any) -> datetime | None:
        """Put a plugin's credentials in its place, if the user has one; return when they expire."""
        named = merged.safe_get("users") and context.get("user")
        entry = merged["users"].get_with_name(named, safe=True) if named else None
        user = entry.value.get("user") if entry else None
        if not user or "exec" not in user or user.get("token") or user.get("tokenFile"):
            return None
        plugin = user.pop("exec")
        self._step = f"running the exec plugin {truncate(plugin['command'])}"
        cluster = merged["clusters"].get_with_name(context["cluster"])
        directory = str(Path(cluster.path).absolute().parent)
        try:
            found = run_plugin(plugin, cluster.value["cluster"], directory, self._seconds)
        except SourceError as error:
            raise SourceError(f"{where}: {error}") from error
        if found.token:
            user["token"] = found.token
        if found.certificate:
            user["client-certificate-data"] = _base64(found.certificate)
            user["client-key-data"] = _base64(found.key)
        return found.expires

    def _limit_refresh(self, settings: Any) -> None:
        """Limit what the library does before a request: it reads a token file again, or asks."""
        if (refresh := settings.refresh_api_key_hook) is None:
            return
        in_time = Deadline(f"{self._where()}: its token", self._seconds)
        settings.refresh_api_key_hook = lambda known: in_time(lambda: refresh(known))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _why_unusable(where: str, error: BaseException) -> str:
    if isinstance(error, OSError):
        # It may be a file that the kubeconfig names.
        other = f"{error.filename}: " if error.filename and str(error.filename) != where else ""
        return f"{other}{describe_os_error(error)}"
    # The client reports a file that does not exist as an invalid file, and passes over it where it
    # is one of several.
    exists = any(path and Path(path).expanduser().exists() for path in where.split(os.pathsep))
    return truncate(str(error)) if exists else "no such file or directory"
