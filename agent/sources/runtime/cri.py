"""Lists the sandboxes and containers of containerd and CRI-O. Changes nothing; no other module knows CRI.

CRI lists a sandbox only when it runs, long after its address was reserved. Both runtimes record it before: containerd
in its own stores, which are served on the same socket, and CRI-O in a list that only the status of a sandbox shows.
"""

import json
import os
import re
import socket
import tomllib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent.model.runtime import CONTAINERD, CRI_O, ContainerRuntime, version_numbers
from agent.model.snapshot import (
    SANDBOX_NOT_READY,
    SANDBOX_OF_ANOTHER_CLIENT,
    SANDBOX_RECORDED,
    Container,
)
from agent.model.text import truncate
from agent.sources.host.cni_config import (
    DEFAULT_DIRECTORY,
    PLUGIN_FILES,
    CniStatus,
    respelled,
)
from agent.sources.runtime.grpc import (
    NOT_FOUND,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    GrpcConnection,
    GrpcError,
)
from agent.sources.runtime.protobuf import DecodedMessage, Encoded, encode_texts
from agent.sources.runtime.runtime import RUNTIME_OF_SOCKET, NoCri, Runtime, labeled_container
from agent.sources.source_error import SourceError

_APIS: Final = (
    "v1",
    "v1alpha2",
)  # their fields are the same: containerd < 1.6 and CRI-O < 1.20 have only the latter
_CONTAINERS: Final = "/containerd.services.containers.v1.Containers/List"
_NAMESPACES: Final = "/containerd.services.namespaces.v1.Namespaces/List"
_SANDBOXES: Final = "/containerd.services.sandbox.v1.Store/List"
_KUBERNETES: Final = "k8s.io"  # containerd's namespace of everything that is created by CRI
_FIRST_WITH_SANDBOXES: Final = (1, 7, 0)  # the first containerd that has a store of sandboxes

_VERBOSE: Final = b"\x08\x01"  # a StatusRequest with `verbose` (1)
_ID: Final = re.compile("[0-9a-f]{64}")
_LARGEST_CONFIGURATION: Final = 1024 * 1024  # bytes of CRI-O's: it has some thousand
_BATCH: Final = (
    32  # sandboxes asked for at once: an answer has room for 512 KiB of each, a pod has 256
)
_MOST_FILTERED: Final = 200
"""If more sandboxes are asked for, all records are listed at once: thousands of leaks would need
hundreds of calls."""
_SANDBOX_STATES: Final = ("running", SANDBOX_NOT_READY)
_CONTAINER_STATES: Final = ("created", "running", "exited")
_BEING_CREATED: Final = "being created"
_NOT_CREATED: Final = "sandbox not created"  # CRI-O's words for a sandbox that is being created
_DENIAL_WITHOUT_ID: Final = (
    "an error occurred when try to find sandbox"  # containerd's words for none
)


class _Fields(NamedTuple):
    """The numbers of the fields of a message, whose id is 1."""

    labels: int
    created: int
    state: int = 0
    states: Sequence[str] = ()


_POD_SANDBOX: Final = _Fields(labels=5, created=4, state=3, states=_SANDBOX_STATES)
_POD_SANDBOX_STATUS: Final = _POD_SANDBOX._replace(labels=7)
_CONTAINER: Final = _Fields(labels=8, created=7, state=6, states=_CONTAINER_STATES)
_CONTAINER_RECORD: Final = _Fields(labels=2, created=8)
_SANDBOX_RECORD: Final = _Fields(labels=4, created=5)


@dataclass
class Cri(Runtime):
    """One CRI endpoint. Every question opens a connection of its own, so a restarted runtime needs no attention."""

    endpoint: Path
    timeout: float  # seconds for each request
    clock: Callable[[], float]
    mounted: Path | None = (
        None  # where the endpoint of the node is for this process; None: at its own path
    )

    @property
    def expected(self) -> ContainerRuntime:
        """What it is before it is asked, by the name of its socket."""
        return ContainerRuntime(
            RUNTIME_OF_SOCKET.get(self.endpoint.name, "cri"), "", str(self.endpoint)
        )

    def identify(self) -> ContainerRuntime:
        """Return the runtime's name and version; raises SourceError, and NoCri where there is no CRI."""
        with self._session() as session:
            return replace(session.identify(), endpoint=str(self.endpoint))

    def containers(self, asked: Collection[str]) -> tuple[Container, ...]:
        """List every sandbox and container, and those of the `asked` that only a record shows. Raises SourceError."""
        with self._session() as session:
            listed = [
                _of_cri(item, _POD_SANDBOX) for item in session.cri("ListPodSandbox").messages(1)
            ]
            listed += [
                _of_cri(item, _CONTAINER) for item in session.cri("ListContainers").messages(1)
            ]
            wanted = {container_id for container_id in asked if _ID.fullmatch(container_id)}
            missing = sorted(wanted.difference(container.id for container in listed))
            return (*listed, *session.unlisted(missing)) if missing else tuple(listed)

    def has(self, container_id: str) -> bool:
        """Return whether this sandbox or container exists or is being created; raises SourceError."""
        # False only where the runtime denies both by this id, and has no record of it.
        if not _ID.fullmatch(container_id):
            raise SourceError(
                f"{self.endpoint}: {truncate(repr(container_id))} is no id of a container"
            )
        with self._session() as session:
            if session.sandboxes([container_id]) or session.has_container(container_id):
                return True
            runtime = session.identify()
            return runtime.name == CONTAINERD and bool(session.records(runtime, [container_id]))

    def networks(self) -> CniStatus:
        """Return what containerd has loaded, without its loopback, or CRI-O is to use. Raises SourceError."""
        with self._session() as session:
            info = session.cri("Status", _VERBOSE).text_map(2)
            if "cniconfig" in info:
                return _cni_status(info["cniconfig"], info.get("config") or "{}")
            return self._configured() if session.identify().name == CRI_O else CniStatus()

    def _configured(self) -> CniStatus:
        """Ask CRI-O for its configuration, in HTTP at the same socket; an old one has none. Raises SourceError."""
        connection = HTTPConnection("localhost")
        try:
            with socket.socket(socket.AF_UNIX) as connection.sock:
                connection.sock.settimeout(self.timeout)
                connection.sock.connect(os.fspath(self.mounted or self.endpoint))
                connection.request("GET", "/config")
                answer = connection.getresponse()
                content = answer.read(_LARGEST_CONFIGURATION).decode()
        except (OSError, HTTPException) as error:
            raise SourceError(f"{self.endpoint}: GET /config: {truncate(repr(error))}") from error
        if answer.status == HTTPStatus.NOT_FOUND:
            return CniStatus()
        network = tomllib.loads(content)["crio"]["network"]
        directory, default = network.get("network_dir"), network.get("cni_default_network", "")
        return CniStatus(None, Path(directory) if directory else None, default)

    @contextmanager
    def _session(self) -> Iterator["_Session"]:
        try:
            with GrpcConnection(
                self.mounted or self.endpoint, self.timeout, self.clock
            ) as connection:
                yield _Session(connection)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise SourceError(
                f"{self.endpoint}: cannot parse the response ({truncate(repr(error))})"
            ) from error


class _Session:
    def __init__(self, connection: GrpcConnection) -> None:
        self._connection = connection
        self._apis: Sequence[str] = _APIS

    def cri(self, method: str, request: bytes = b"") -> DecodedMessage:
        (answer,) = self._cri(method, [request])
        return _message(answer)

    def _cri(self, method: str, requests: Sequence[bytes]) -> list[Encoded | GrpcError]:
        """Call CRI, in the first version that is implemented."""
        for api in self._apis:
            answers = self._connection.calls(f"/runtime.{api}.RuntimeService/{method}", requests)
            error = answers[0]
            if not isinstance(error, GrpcError) or error.code != UNIMPLEMENTED:
                self._apis = (api,)
                return answers
            if len(self._apis) == 1:
                raise error
            unimplemented = error
        raise NoCri(f"{unimplemented}; CRI is disabled here, or failed to start") from unimplemented

    def identify(self) -> ContainerRuntime:
        answer = self.cri("Version")
        return ContainerRuntime(answer.text(2), answer.text(3))

    def sandboxes(self, ids: Sequence[str]) -> list[Container]:
        """Return sandboxes by their status, which of CRI-O shows those that are being created as well."""
        # All are requested before the first answer is awaited: a busy CRI-O takes its time for each.
        answers = self._cri(
            "PodSandboxStatus", [encode_texts(container_id) for container_id in ids]
        )
        found = (
            _status(container_id, answer) for container_id, answer in zip(ids, answers, strict=True)
        )
        return [sandbox for sandbox in found if sandbox]

    def has_container(self, container_id: str) -> bool:
        (answer,) = self._cri("ContainerStatus", [encode_texts(container_id)])
        return _found(container_id, answer) is not None

    def unlisted(self, ids: Sequence[str]) -> Collection[Container]:
        """Return what CRI does not list, and the runtime has nevertheless."""
        runtime = self.identify()
        if runtime.name == CONTAINERD:
            return self.records(runtime, ids)
        return [sandbox for batch in _batches(ids) for sandbox in self.sandboxes(batch)]

    def records(self, runtime: ContainerRuntime, ids: Sequence[str]) -> Collection[Container]:
        """Return those of these ids that containerd has a record of."""
        namespaces = {
            item.text(1) for item in DecodedMessage(self._connection.call(_NAMESPACES)).messages(1)
        }
        found: list[Container] = []
        for namespace in (
            *(namespaces - {_KUBERNETES}),
            _KUBERNETES,
        ):  # the record of a pod is kept
            state = SANDBOX_RECORDED if namespace == _KUBERNETES else SANDBOX_OF_ANOTHER_CLIENT
            found += self._records(_CONTAINERS, namespace, ids, _CONTAINER_RECORD, state)
        try:
            found += self._records(_SANDBOXES, _KUBERNETES, ids, _SANDBOX_RECORD, SANDBOX_RECORDED)
        except GrpcError as error:
            # Only the version shows that there is no such store yet, and not that it failed to start.
            version = version_numbers(runtime.version)
            if error.code != UNIMPLEMENTED or version is None or version >= _FIRST_WITH_SANDBOXES:
                raise
        return {record.id: record for record in found}.values()

    def _records(
        self, method: str, namespace: str, ids: Sequence[str], fields: _Fields, state: str
    ) -> Iterator[Container]:
        wanted = frozenset(ids)
        for answer in self._record_lists(method, namespace, ids):
            for item in DecodedMessage(answer).messages(1):
                if item.text(1) in wanted:
                    seconds = item.message(fields.created).integer(1)
                    labels = item.text_map(fields.labels)
                    yield labeled_container(item.text(1), state, seconds, labels, sandbox=True)

    def _record_lists(self, method: str, namespace: str, ids: Sequence[str]) -> Iterator[Encoded]:
        """Yield lists that have the records of these ids, and perhaps others."""
        of_namespace = {"containerd-namespace": namespace}
        if len(ids) > _MOST_FILTERED:
            try:
                yield self._connection.call(method, metadata=of_namespace)
            except GrpcError as error:
                if error.code != RESOURCE_EXHAUSTED:
                    raise
            else:
                return
        for batch in _batches(ids):
            request = encode_texts(*(f"id=={container_id}" for container_id in batch))
            yield self._connection.call(method, request, of_namespace)


def _cni_status(cniconfig: str, config: str) -> CniStatus:
    status = json.loads(cniconfig)
    configured = [network["Config"] for network in status["Networks"] or ()]
    loaded = tuple(
        {
            "name": network["Name"],
            "plugins": [respelled(json.loads(plugin["Source"])) for plugin in network["Plugins"]],
            PLUGIN_FILES: _has_plugin_files(network),
        }
        for network in configured
        if network["Name"] != "cni-loopback"
    )
    directory = Path(status.get("PluginConfDir") or DEFAULT_DIRECTORY)
    classes = json.loads(config).get("containerd", {}).get("runtimes") or {}
    own = {Path(runtime["cniConfDir"]) for runtime in classes.values() if runtime.get("cniConfDir")}
    return CniStatus(loaded, directory, others=tuple(sorted(own - {directory})))


def _has_plugin_files(network: Any) -> bool:
    """Return whether containerd has loaded more plugins of a network than are in its file."""
    source = json.loads(network.get("Source") or "{}")
    return "name" in source and len(source.get("plugins") or ()) < len(network["Plugins"])


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH))


def _message(answer: Encoded | GrpcError) -> DecodedMessage:
    if isinstance(answer, GrpcError):
        raise answer
    return DecodedMessage(answer)


def _found(container_id: str, answer: Encoded | GrpcError) -> DecodedMessage | None:
    """Return the status of this container; None only where the runtime denies it by the id."""
    if (
        isinstance(answer, GrpcError)
        and answer.code == NOT_FOUND
        and _denies(answer.message, container_id)
    ):
        return None
    found = _message(answer).message(1)
    if found.text(1) != container_id:
        raise ValueError(f"requested {container_id}, got {found.text(1)}")
    return found


def _denies(message: str, container_id: str) -> bool:
    """Return whether a message says that this container does not exist: NOT_FOUND can have other reasons."""
    if container_id in message:
        return "not found" in message
    return message.removesuffix(": not found") == _DENIAL_WITHOUT_ID


def _status(container_id: str, answer: Encoded | GrpcError) -> Container | None:
    """Return a sandbox by its status; None: it does not exist."""
    if (
        isinstance(answer, GrpcError)
        and container_id in answer.message
        and _NOT_CREATED in answer.message
    ):
        return Container(container_id, _BEING_CREATED, 0, "", "", sandbox=True)
    found = _found(container_id, answer)
    return None if found is None else _of_cri(found, _POD_SANDBOX_STATUS)


def _of_cri(item: DecodedMessage, fields: _Fields) -> Container:
    state = dict(enumerate(fields.states)).get(item.integer(fields.state), "unknown")
    seconds, labels = item.integer(fields.created) // 10**9, item.text_map(fields.labels)
    return labeled_container(item.text(1), state, seconds, labels, sandbox=fields is not _CONTAINER)
