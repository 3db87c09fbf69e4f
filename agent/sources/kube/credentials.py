"""Credentials for the API server, found and renewed by the kubernetes client."""

import os
from pathlib import Path
from typing import Final

from kubernetes import client, config
from yaml import YAMLError  # type: ignore[import-untyped]

from agent.model.text import truncate
from agent.sources.os_error import describe_os_error
from agent.sources.source_error import SourceError

_IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (the client creates private files in it)
"""Where the certificates of a kubeconfig go, if possible."""


class NoCredentials(SourceError):
    """There are no credentials for an API server; the text says where they were expected."""


def client_for(kubeconfig: Path | None) -> client.ApiClient:
    """Return a client with credentials: the given kubeconfig, the pod's service account, or $KUBECONFIG.

    Raises NoCredentials.
    """
    settings = client.Configuration()
    in_cluster = kubeconfig is None and _IN_CLUSTER.exists() and bool(os.environ.get("KUBERNETES_SERVICE_HOST"))
    where = str(_IN_CLUSTER.parent if in_cluster else kubeconfig or os.environ.get("KUBECONFIG") or "")
    if not where:
        raise NoCredentials("no service account is mounted, and neither --kubeconfig nor KUBECONFIG is set")
    try:
        if in_cluster:
            config.load_incluster_config(settings)
        else:
            memory = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
            config.load_kube_config(where, client_configuration=settings, persist_config=False, temp_file_path=memory)
    except (config.ConfigException, YAMLError, OSError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise NoCredentials(f"cannot read {where}: {_why_unusable(where, error)}") from error
    settings.retries = False
    settings.connection_pool_maxsize = 2
    api = client.ApiClient(settings)
    api.user_agent = "nodeleak"
    return api


def _why_unusable(where: str, error: Exception) -> str:
    if isinstance(error, OSError):
        # It may be a file that the kubeconfig names.
        other = f"{error.filename}: " if error.filename and str(error.filename) != where else ""
        return f"{other}{describe_os_error(error)}"
    # The client reports a file that does not exist as an invalid file, and passes over it where it is one of several.
    exists = any(path and Path(path).expanduser().exists() for path in where.split(os.pathsep))
    return truncate(str(error)) if exists else "no such file or directory"
