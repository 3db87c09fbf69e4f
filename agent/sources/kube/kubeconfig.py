"""Reads a kubeconfig with the package `kubernetes`, which knows all kinds of credentials.

It needs 15 MiB and 200 ms, so this module is imported only where there is a kubeconfig.
"""

import base64
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config
from kubernetes.client.rest import should_bypass_proxies
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger
from urllib3.exceptions import HTTPError
from yaml import YAMLError  # type: ignore[import-untyped]

from agent.model.text import truncate
from agent.sources.deadline import Deadline
from agent.sources.kube.credentials import Credentials, NoCredentials
from agent.sources.kube.exec_plugin import run_plugin
from agent.sources.source_error import SourceError, describe_os_error

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 (the package creates private files in it)
"""Where the certificates of a kubeconfig go, if possible."""
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
"""What it raises for a kubeconfig that it cannot use, or a file that this names."""
_UNREACHABLE: Final = (HTTPError, client.ApiException)
"""What the package raises if an auth-provider does not answer."""


def read_kubeconfig(where: str, seconds: float, report_step: Callable[[str], None]) -> Credentials:
    """Return the credentials of the current context; raises NoCredentials, SourceError by a plugin.

    `where`: paths, as in $KUBECONFIG. `seconds`: how long a plugin has, and each refreshing of a
    token. `report_step`: called with what is done next, which may hang.
    """
    try:
        return _read(where, seconds, report_step)
    except _UNREACHABLE as error:
        raise SourceError(f"{where}: auth-provider: {truncate(error)}") from error
    except _UNUSABLE as error:
        raise NoCredentials(f"cannot read {where}: {_why_unusable(where, error)}") from error


def _read(where: str, seconds: float, report_step: Callable[[str], None]) -> Credentials:
    """Return the credentials; raises whatever the package raises, and SourceError by a plugin."""
    report_step("reading the file")
    merged = KubeConfigMerger(where).config
    memory = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
    kubeconfig = KubeConfigLoader(merged, config_base_path=None, temp_file_path=memory)
    context = kubeconfig.current_context["context"]
    expires = _run_plugin(where, merged, context, seconds, report_step)

    report_step("reading a file that it names, or asking its auth-provider")
    settings = client.Configuration()
    kubeconfig.load_and_set(settings)
    is_direct = should_bypass_proxies(settings.host, settings.no_proxy or "")

    return Credentials(
        server=settings.host,
        authorization=_authorization(where, settings, seconds),
        authority=settings.ssl_ca_cert,
        verifies=settings.verify_ssl,
        server_name=settings.tls_server_name or None,
        certificate=settings.cert_file,
        key=settings.key_file,
        # As kubectl does, the package takes it from the environment if the kubeconfig names none.
        proxy=None if is_direct else settings.proxy or None,
        expires=expires,
    )


def _run_plugin(
    where: str, merged: Any, context: Any, seconds: float, report_step: Callable[[str], None]
) -> datetime | None:
    """Put a plugin's credentials in its place, if the user has one; return when they expire."""
    name = merged.safe_get("users") and context.get("user")
    entry = merged["users"].get_with_name(name, safe=True) if name else None
    user = entry.value.get("user") if entry else None
    if not user or "exec" not in user or user.get("token") or user.get("tokenFile"):
        return None

    plugin = user.pop("exec")
    report_step(f"running the exec plugin {truncate(plugin['command'])}")
    cluster = merged["clusters"].get_with_name(context["cluster"])
    directory = str(Path(cluster.path).absolute().parent)
    try:
        credential = run_plugin(plugin, cluster.value["cluster"], directory, seconds)
    except SourceError as error:
        raise SourceError(f"{where}: {error}") from error

    if credential.token:
        user["token"] = credential.token
    if credential.certificate:
        user["client-certificate-data"] = _base64(credential.certificate)
        user["client-key-data"] = _base64(credential.key)
    return credential.expires


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _authorization(where: str, settings: Any, seconds: float) -> Callable[[], str | None]:
    """Return what reads the header, after the package has refreshed it.

    It may ask an auth-provider.
    """
    in_time = Deadline(f"{where}: its token", seconds)

    def refreshed() -> str | None:
        if refresh := settings.refresh_api_key_hook:
            try:
                in_time(lambda: refresh(settings))
            except _UNREACHABLE as error:
                raise SourceError(f"{where}: auth-provider: {truncate(error)}") from error
            except _UNUSABLE as error:
                raise SourceError(f"{where}: {_why_unusable(where, error)}") from error
        authorization: str | None = settings.api_key.get("BearerToken")
        return authorization

    return refreshed


def _why_unusable(where: str, error: BaseException) -> str:
    """Return why a kubeconfig cannot be used; `where`: its paths."""
    if isinstance(error, OSError):
        # It may be a file that the kubeconfig names.
        other = f"{error.filename}: " if error.filename and str(error.filename) != where else ""
        return f"{other}{describe_os_error(error)}"
    # The package reports a file that does not exist as an invalid file, and passes over it where it
    # is one of several.
    exists = any(path and Path(path).expanduser().exists() for path in where.split(os.pathsep))
    return truncate(error) if exists else "no such file or directory"
