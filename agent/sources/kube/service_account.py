"""The service account of a pod: its token, and the authority of the API server.

The names and paths are those of client-go (rest/config.go, InClusterConfig).
"""

import os
from pathlib import Path

from agent.sources.deadline import Deadline
from agent.sources.kube.credentials import Credentials, NoCredentials
from agent.sources.source_error import SourceError, read_error

DIRECTORY = Path("/var/run/secrets/kubernetes.io/serviceaccount")


def is_mounted() -> bool:
    """Whether this process runs in a pod that has one, readable or not."""
    if not os.environ.get("KUBERNETES_SERVICE_HOST"):
        return False

    try:
        (DIRECTORY / "token").stat()
    except OSError as error:
        return not isinstance(error, (FileNotFoundError, NotADirectoryError))
    return True


def read_service_account(seconds: float) -> Credentials:
    """Return the pod's credentials; raises NoCredentials.

    `seconds`: how long a reading of the token may take, which the kubelet rotates: it is read again
    for each request.
    """
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise NoCredentials("KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set")

    authority = DIRECTORY / "ca.crt"
    try:
        _read(authority)
        _read_token()
    except SourceError as error:
        raise NoCredentials(str(error)) from error

    in_time = Deadline(f"{DIRECTORY}: its token", seconds)
    return Credentials(
        server=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        authorization=lambda: in_time(_read_token),
        authority=str(authority),
    )


def read_namespace() -> str:
    """Return the namespace of the pod; raises SourceError."""
    return _read(DIRECTORY / "namespace").strip()


def _read_token() -> str:
    return f"Bearer {_read(DIRECTORY / 'token')}"


def _read(path: Path) -> str:
    """Return the content of a file, which is not empty; raises SourceError."""
    try:
        content = path.read_text()
    except OSError as error:
        raise read_error(path, error) from error
    except UnicodeDecodeError as error:
        raise SourceError(f"cannot read {path}: {error}") from error
    if not content:
        raise SourceError(f"cannot read {path}: it is empty")
    return content
