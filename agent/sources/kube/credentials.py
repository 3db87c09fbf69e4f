"""Credentials for the API server, read by the kubernetes client, which waits without end for a file or a plugin.

So one thread reads them for all connections, and whoever needs them waits for a limited time. What hangs keeps the one
thread until it answers.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from kubernetes import client, config
from yaml import YAMLError  # type: ignore[import-untyped]

from agent.model.text import truncate
from agent.sources.deadline import Deadline, Late
from agent.sources.os_error import describe_os_error
from agent.sources.source_error import SourceError

_T = TypeVar("_T")

CREDENTIALS_SECONDS: Final = 12.0
"""For all credentials. A credential plugin may ask a cloud's API."""
_IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (the client creates private files in it)
_AGENT: Final = "nodeleak"


class NoCredentials(SourceError):
    """There are no credentials for an API server; the text says where they were expected."""


_read: Final = Deadline("credentials", CREDENTIALS_SECONDS)


def client_for(kubeconfig: Path | None) -> client.ApiClient:
    """Find credentials, and return a client that uses them; raises SourceError, and NoCredentials if there are none."""
    return in_time(kubeconfig, lambda: _client_for(kubeconfig))


def in_time(kubeconfig: Path | None, read: Callable[[], _T]) -> _T:
    """Return what the client reads, which may renew its credentials; raises SourceError if that hangs, or as `read`."""
    try:
        return _read(read)
    except Late as late:
        raise SourceError(
            f"API server: no credentials: reading {_where(kubeconfig)}, and what it names, takes more than "
            f"{CREDENTIALS_SECONDS:g} s: a file system, a credential plugin or an identity provider hangs"
        ) from late


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
