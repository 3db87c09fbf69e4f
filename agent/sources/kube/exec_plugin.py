"""Runs the `exec` plugin of a kubeconfig (client.authentication.k8s.io) under a time limit.

The plugin asks a cloud, which may not answer. Its processes form a group of their own, so that all
of them can be ended: plugins are often shell scripts, whose children keep the output open, or stay
when the script has ended.
"""

import atexit
import json
import os
import selectors
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from threading import Event, Timer
from typing import Any, Final, NamedTuple

from agent.model.text import escape, truncate
from agent.sources.json_tree import text_field
from agent.sources.kube.fields import moment
from agent.sources.source_error import MALFORMED, SourceError, describe_os_error

_LARGEST_OUTPUT: Final = 1 << 20
"""Bytes, of each output: a certificate with its chain has some thousand."""
_PIECE: Final = 64 * 1024
_POLL: Final = 0.05
"""Seconds between two looks whether the time is over."""


class PluginError(SourceError):
    """The plugin gave no credentials; the text has its name and the reason."""


class Credential(NamedTuple):
    """What a plugin gave. Empty texts: it gave none."""

    token: str
    certificate: str
    """PEM, as the key."""
    key: str
    expires: datetime | None


def run_plugin(
    described: Mapping[str, Any], cluster: Mapping[str, Any], directory: str | None, seconds: float
) -> Credential:
    """Run the plugin; raises PluginError, also KeyError, TypeError, ValueError for an odd `exec`.

    `described`: the `exec` of the kubeconfig's user. `cluster`: the kubeconfig's cluster, which the
    plugin gets if `exec` says so. `directory`: that of the kubeconfig, to which a relative command
    belongs.
    """
    if missing := [name for name in ("command", "apiVersion") if not described.get(name)]:
        raise ValueError(f"exec has no {missing[0]}")
    command = str(described["command"])
    version = str(described["apiVersion"])
    if described.get("interactiveMode") == "Always":
        raise PluginError(f"exec plugin {command}: it needs a terminal (interactiveMode: Always)")

    environment = {str(each["name"]): str(each["value"]) for each in described.get("env") or ()}
    spec: dict[str, Any] = {"interactive": False}
    if described.get("provideClusterInfo"):
        spec["cluster"] = _cluster_info(cluster)
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    environment["KUBERNETES_EXEC_INFO"] = json.dumps(info)

    words = [command, *map(str, described.get("args") or ())]
    output = _output(words, environment, directory, seconds)
    return _parse(command, version, output)


def _cluster_info(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cluster with the configuration that it has for plugins."""
    name = "client.authentication.k8s.io/exec"
    extensions = cluster.get("extensions") or ()
    configured = [each["extension"] for each in extensions if each["name"] == name]
    return {**cluster, "config": configured[0]} if configured else dict(cluster)


def _output(
    words: list[str], environment: Mapping[str, str], directory: str | None, seconds: float
) -> bytes:
    """Return what the plugin writes, if it ends in time and well; raises PluginError."""
    try:
        process = subprocess.Popen(  # noqa: S603 (the kubeconfig names it)
            words,
            env={**os.environ, **environment},
            cwd=directory or None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise PluginError(f"exec plugin {words[0]}: {describe_os_error(error)}") from error

    late = Event()
    timer = Timer(seconds, late.set)
    timer.daemon = True
    timer.start()
    with process, _ended(process):
        output, errors = _read(process, late)
        while not (in_time := _has_ended(process)) and not late.wait(_POLL):
            pass  # it closed its outputs, and has yet to end
    timer.cancel()

    if len(output) > _LARGEST_OUTPUT or len(errors) > _LARGEST_OUTPUT:
        raise PluginError(f"exec plugin {words[0]}: more output than {_LARGEST_OUTPUT:,} bytes")
    if not in_time:
        raise PluginError(f"exec plugin {words[0]}: it did not end within {seconds:g} s")
    if process.returncode:
        code = f"exit code {process.returncode}"
        message = escape(truncate(errors.decode(errors="replace")))
        text = f"{code}: {message}" if message else code
        raise PluginError(f"exec plugin {words[0]}: {text}")
    return output


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether the plugin has ended. It keeps its number, by which its children are ended."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None


@contextmanager
def _ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End the plugin and its children after the block, and with this process, as after Ctrl-C."""

    def end() -> None:
        if process.returncode is None:  # until then, its number belongs to no other process
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    atexit.register(end)
    try:
        yield
    finally:
        end()
        atexit.unregister(end)


def _read(process: subprocess.Popen[bytes], late: Event) -> tuple[bytes, bytes]:
    """Return both outputs; or what there is of them when it is late, or when one is too long."""
    stdout = bytearray()
    stderr = bytearray()
    with selectors.DefaultSelector() as selector:
        for stream, output in ((process.stdout, stdout), (process.stderr, stderr)):
            if stream:
                selector.register(stream, selectors.EVENT_READ, output)

        # A process that left the group may keep them open: it is not waited for.
        while selector.get_map() and not late.is_set():
            for key, _ in selector.select(_POLL):
                piece = os.read(key.fd, _PIECE)
                key.data.extend(piece)
                if not piece:
                    selector.unregister(key.fileobj)
                if len(key.data) > _LARGEST_OUTPUT:
                    late.set()
    return bytes(stdout), bytes(stderr)


def _parse(command: str, version: str, output: bytes) -> Credential:
    """Return the credential in a plugin's output; raises PluginError."""
    try:
        tree = json.loads(output)
        if tree["apiVersion"] != version or tree["kind"] != "ExecCredential":
            raise ValueError(f"it is not an ExecCredential of {version}")
        status = tree["status"]
        credential = Credential(
            token=text_field(status, "token"),
            certificate=text_field(status, "clientCertificateData"),
            key=text_field(status, "clientKeyData"),
            expires=moment(status.get("expirationTimestamp")),
        )
    except MALFORMED as error:
        # The output may have a token in it: it is not shown.
        text = f"its output is not an ExecCredential ({type(error).__name__})"
        raise PluginError(f"exec plugin {command}: {text}") from None

    if not credential.token and not (credential.certificate and credential.key):
        raise PluginError(f"exec plugin {command}: its output has no token and no certificate")
    return credential
