"""Credentials for the API server, read by the kubernetes client, which waits without end for a file or a plugin.

So one thread reads them for all connections, and whoever needs them waits for a limited time. A plugin that hangs is
killed; a file system that hangs keeps the one thread until it answers.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from threading import Timer
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from kubernetes import client, config
from kubernetes.config import exec_provider, kube_config
from yaml import YAMLError  # type: ignore[import-untyped]

from agent.model.input_limit import InputLimit
from agent.model.text import truncate
from agent.sources.deadline import Deadline, Late, start
from agent.sources.os_error import describe_os_error
from agent.sources.source_error import SourceError

_T = TypeVar("_T")

PLUGIN_SECONDS: Final = 10.0
"""For a credential plugin, which may ask a cloud's API."""
LARGEST_PLUGIN_OUTPUT: Final[InputLimit] = 1024 * 1024
"""Bytes that a credential plugin may print: a token or a certificate has some KiB."""
CREDENTIALS_SECONDS: Final = 12.0
"""For all credentials: more than for a plugin, which has the better message."""
_IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (the client creates private files in it)
_AGENT: Final = "nodeleak"


class NoCredentials(SourceError):
    """There are no credentials for an API server; the text says where they were expected."""


class _PluginFails(BaseException):
    """No Exception: the client would log it, and go on without credentials."""


class _Plugin(subprocess.Popen[str]):
    """A credential plugin that is killed if it takes too long, or prints too much. It has no terminal to ask on."""

    def __init__(self, args: Any, **options: Any) -> None:
        self._program, self._late = truncate(str(args[0])), False
        # The client lets it ask, without a limit, where the agent prints to a terminal.
        options |= {"stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE, "env": _not_interactive(options.get("env"))}
        super().__init__(args, start_new_session=True, **options)  # what it starts is killed with it

    def communicate(self, *_: Any, **__: Any) -> tuple[str, str]:
        killer = Timer(PLUGIN_SECONDS, self._kill_late)
        try:
            start(killer)
        except SourceError as error:
            self._kill()
            raise _PluginFails(f"{self._program} was killed: {error}") from None
        try:
            with self:
                printed = self._read()
        finally:
            killer.cancel()
        if self._late:
            raise _PluginFails(
                f"{self._program} hangs: killed after {PLUGIN_SECONDS:g} s. It has no terminal: "
                "if it asks for a login, log in with kubectl first"
            )
        if any(len(one) > LARGEST_PLUGIN_OUTPUT for one in printed):
            raise _PluginFails(f"{self._program} prints more than {LARGEST_PLUGIN_OUTPUT:,} bytes, and was killed")
        output, errors = (one.decode(errors="replace") for one in printed)
        return output, errors

    def _read(self) -> tuple[bytearray, bytearray]:
        read = bytearray(), bytearray()
        with DefaultSelector() as pipes:
            for pipe, into in zip(filter(None, (self.stdout, self.stderr)), read, strict=True):
                pipes.register(pipe, EVENT_READ, into)
            while pipes.get_map() and not self._late:
                for key, _ in pipes.select(PLUGIN_SECONDS):
                    piece = os.read(key.fd, 65536)
                    key.data.extend(piece)
                    if len(key.data) > LARGEST_PLUGIN_OUTPUT:
                        self._kill()
                        return read
                    if not piece:
                        pipes.unregister(key.fileobj)
        return read

    def _kill_late(self) -> None:
        self._late = True
        self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)


def _not_interactive(environment: dict[str, str] | None) -> dict[str, str] | None:
    """Tell the plugin so, as the protocol has it."""
    if environment is None or "KUBERNETES_EXEC_INFO" not in environment:
        return environment
    info = json.loads(environment["KUBERNETES_EXEC_INFO"])
    info["spec"]["interactive"] = False
    return {**environment, "KUBERNETES_EXEC_INFO": json.dumps(info)}


for _module in (exec_provider, kube_config):
    setattr(_module, "subprocess", SimpleNamespace(Popen=_Plugin, PIPE=subprocess.PIPE))  # noqa: B010 (untyped)

_read: Final = Deadline("credentials", CREDENTIALS_SECONDS)


def client_for(kubeconfig: Path | None) -> client.ApiClient:
    """Find credentials, and return a client that uses them; raises SourceError, and NoCredentials if there are none."""
    return in_time(kubeconfig, lambda: _client_for(kubeconfig))


def in_time(kubeconfig: Path | None, read: Callable[[], _T]) -> _T:
    """Return what the client reads, which may renew its credentials; raises SourceError if that hangs, or as `read`."""
    where = _where(kubeconfig)
    try:
        return _read(read)
    except _PluginFails as fails:
        why = f"the credential plugin of {where}: {fails}"
    except Late:
        why = (
            f"reading {where}, and what it names, takes more than {CREDENTIALS_SECONDS:g} s: "
            "a file system or an identity provider hangs"
        )
    raise SourceError(f"API server: no credentials: {why}")


def _where(kubeconfig: Path | None) -> str | Path:
    return kubeconfig or os.environ.get("KUBECONFIG") or _IN_CLUSTER.parent


def _client_for(kubeconfig: Path | None) -> client.ApiClient:
    settings = client.Configuration()
    try:
        if kubeconfig is not None:
            _load(str(kubeconfig), settings)
        elif _IN_CLUSTER.exists() and os.environ.get("KUBERNETES_SERVICE_HOST"):
            config.load_incluster_config(settings)
        elif os.environ.get("KUBECONFIG"):
            _load(None, settings)
        else:
            raise NoCredentials("no service account is mounted, and neither --kubeconfig nor KUBECONFIG is set")
    except (config.ConfigException, YAMLError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        where = _where(kubeconfig)
        raise NoCredentials(f"cannot read {where}: {_why_unusable(where, error)}") from error
    settings.retries = False
    settings.connection_pool_maxsize = 2
    api = client.ApiClient(settings)
    api.user_agent = _AGENT
    return api


def _why_unusable(where: str | Path, error: Exception) -> str:
    if isinstance(error, OSError):
        # It may be a file that the kubeconfig names.
        other = f"{error.filename}: " if error.filename and str(error.filename) != str(where) else ""
        return f"{other}{describe_os_error(error)}"
    # The client reports a file that does not exist as an invalid one, and passes over it where it is one of several.
    exists = any(path and Path(path).expanduser().exists() for path in str(where).split(os.pathsep))
    return truncate(str(error)) if exists else "no such file or directory"


def _load(kubeconfig: str | None, settings: client.Configuration) -> None:
    """Load a kubeconfig without changing it. Its certificates are written to memory, if possible."""
    config.load_kube_config(
        kubeconfig,
        client_configuration=settings,
        persist_config=False,
        temp_file_path=str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None,
    )
