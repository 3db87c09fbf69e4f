"""Lists the sandboxes and containers of containerd and CRI-O. Read-only; no other module knows CRI.

CRI lists a sandbox only when it runs, long after its address was reserved. Both runtimes record it
before: containerd in its own stores, which are served on the same socket, and CRI-O in a list that
only the status of a sandbox shows.
"""

import json
import os
import re
import socket
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent.model.node_network import RuntimeStatus
from agent.model.runtime import CONTAINERD, CRI_O, ContainerRuntime
from agent.model.snapshot import (
    SANDBOX_NOT_READY,
    SANDBOX_OF_ANOTHER_CLIENT,
    SANDBOX_RECORDED,
    Container,
)
from agent.model.text import escape, truncate
from agent.model.versions import version_numbers
from agent.sources.host.cni_config import (
    DEFAULT_DIRECTORY,
    PLUGIN_FILES,
    CniStatus,
    Configuration,
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
from agent.sources.source_error import MALFORMED, SourceError

_VERSIONS: Final = ("v1", "v1alpha2")
"""Their fields are the same: containerd < 1.6 and CRI-O < 1.20 have only the latter."""

_CONTAINERS: Final = "/containerd.services.containers.v1.Containers/List"
_NAMESPACES: Final = "/containerd.services.namespaces.v1.Namespaces/List"
_SANDBOXES: Final = "/containerd.services.sandbox.v1.Store/List"
_KUBERNETES: Final = "k8s.io"  # containerd's namespace of everything that is created by CRI
_FIRST_WITH_SANDBOXES: Final = (1, 7, 0)  # the first containerd that has a store of sandboxes

_VERBOSE: Final = b"\x08\x01"  # a StatusRequest with `verbose` (1)
_LAST_LOAD: Final = "lastCNILoadStatus"  # containerd >= 1.4: `OK`, or an error
_LOAD_SUCCEEDED: Final = "OK"
_LONGEST_MESSAGE: Final = 500  # characters of a runtime's own words
_CONFIGURATION_LIMIT: Final = 1024 * 1024  # bytes of CRI-O's: it has some thousand

_ID: Final = re.compile("[0-9a-f]{64}")
_BATCH_SIZE: Final = 32
"""Sandboxes in one request: a response has room for 512 KiB of each, a pod has 256."""
_FILTER_LIMIT: Final = 200
"""If more records are looked for, all are listed in one call: thousands of leaks would need
hundreds of calls."""

_SANDBOX_STATES: Final = ("running", SANDBOX_NOT_READY)
_CONTAINER_STATES: Final = ("created", "running", "exited")
_BEING_CREATED: Final = "being created"
_NOT_YET_CREATED: Final = "sandbox not created"  # CRI-O's words for one that is being created
_DENIAL_WITHOUT_ID: Final = "an error occurred when try to find sandbox"
"""containerd's NOT_FOUND text that lacks the ID."""


class _Fields(NamedTuple):
    """The numbers of the fields of a message whose id is 1.

    From k8s.io/cri-api/pkg/apis/runtime/v1/api.proto and containerd/api/services.
    """

    labels: int
    created: int
    """Nanoseconds since the epoch; in a record, a Timestamp."""
    state: int = 0
    """0: it has none."""
    states: Sequence[str] = ()
    """The names of its states, by their numbers."""


_POD_SANDBOX: Final = _Fields(labels=5, created=4, state=3, states=_SANDBOX_STATES)
_POD_SANDBOX_STATUS: Final = _POD_SANDBOX._replace(labels=7)
_CONTAINER: Final = _Fields(labels=8, created=7, state=6, states=_CONTAINER_STATES)
_CONTAINER_RECORD: Final = _Fields(labels=2, created=8)
_SANDBOX_RECORD: Final = _Fields(labels=4, created=5)


@dataclass
class Cri(Runtime):
    """One CRI endpoint. Each call opens a connection, so a restarted runtime needs no attention."""

    endpoint: Path
    timeout: float
    """Seconds for each request."""
    clock: Callable[[], float]
    """Returns seconds, never jumping."""
    mounted: Path | None = None
    """Where the endpoint of the node is for this process; None: at its own path."""

    @property
    def expected(self) -> ContainerRuntime:
        name = RUNTIME_OF_SOCKET.get(self.endpoint.name, "cri")
        return ContainerRuntime(name, version="", endpoint=str(self.endpoint))

    def identify(self) -> ContainerRuntime:
        with self._session() as session:
            return replace(session.identify(), endpoint=str(self.endpoint))

    def containers(self, unlisted: Collection[str]) -> tuple[Container, ...]:
        with self._session() as session:
            sandboxes = session.call("ListPodSandbox").messages(1)
            containers = [_container(item, _POD_SANDBOX) for item in sandboxes]

            listed = session.call("ListContainers").messages(1)
            containers += [_container(item, _CONTAINER) for item in listed]

            ids = set(filter(_ID.fullmatch, unlisted))
            if missing := sorted(ids.difference(container.id for container in containers)):
                containers += session.find_unlisted(missing)

        return tuple(containers)

    def has(self, container_id: str) -> bool:
        """Return False only if the runtime denies a sandbox and a container, and has no record."""
        if not _ID.fullmatch(container_id):
            shown = truncate(repr(container_id))
            raise SourceError(f"{self.endpoint}: {shown} is not a container ID")

        with self._session() as session:
            if session.sandboxes([container_id]) or session.has_container(container_id):
                return True
            runtime = session.identify()
            return runtime.name == CONTAINERD and bool(session.records(runtime, [container_id]))

    def networks(self) -> CniStatus:
        """Return its status; of containerd what it has loaded, of CRI-O what it is to use."""
        with self._session() as session:
            response = session.call("Status", _VERBOSE)
            info = response.text_map(2)
            status = _runtime_status(response.message(1), info.get(_LAST_LOAD, ""))

            if "cniconfig" in info:
                return _cni_status(status, info["cniconfig"], info.get("config") or "{}")
            if session.identify().name == CRI_O:
                return self._configured(status)
            return CniStatus(status)

    def _configured(self, status: RuntimeStatus) -> CniStatus:
        """Return what CRI-O's configuration says, which it serves by HTTP on the same socket.

        An old CRI-O does not serve it. Raises SourceError.
        """
        connection = HTTPConnection("localhost")
        try:
            with socket.socket(socket.AF_UNIX) as connection.sock:
                connection.sock.settimeout(self.timeout)
                connection.sock.connect(os.fspath(self.mounted or self.endpoint))
                connection.request("GET", "/config")
                response = connection.getresponse()
                content = response.read(_CONFIGURATION_LIMIT).decode()
        except (OSError, HTTPException) as error:
            raise SourceError(f"{self.endpoint}: GET /config: {truncate(repr(error))}") from error

        if response.status == HTTPStatus.NOT_FOUND:
            return CniStatus(status)

        tree = tomllib.loads(content)["crio"]
        network = tree["network"]
        return CniStatus(
            status,
            directory=_path_or_none(network.get("network_dir")),
            default=network.get("cni_default_network", ""),
            plugin_directories=tuple(map(Path, network.get("plugin_dirs") or ())),
            root=_path_or_none(tree.get("root")),
        )

    @contextmanager
    def _session(self) -> Iterator["_Session"]:
        """Open a connection; raises SourceError, also for a response that cannot be parsed."""
        path = self.mounted or self.endpoint
        try:
            with GrpcConnection(path, self.timeout, self.clock) as connection:
                yield _Session(connection)
        except MALFORMED as error:
            reason = truncate(repr(error))
            raise SourceError(f"{self.endpoint}: cannot parse the response ({reason})") from error


@dataclass
class _Session:
    """The calls of one connection. Each raises SourceError."""

    connection: GrpcConnection
    _versions: Sequence[str] = _VERSIONS
    """Those that the runtime may implement; after the first response, the one that it does."""

    def call(self, method: str, request: bytes = b"") -> DecodedMessage:
        """Call a method of CRI."""
        (response,) = self._calls(method, [request])
        if isinstance(response, GrpcError):
            raise response
        return DecodedMessage(response)

    def _calls(self, method: str, requests: Sequence[bytes]) -> list[Encoded | GrpcError]:
        """Call CRI, in the first version that is implemented; return the responses in order."""
        for version in self._versions:
            path = f"/runtime.{version}.RuntimeService/{method}"
            responses = self.connection.calls(path, requests)

            error = responses[0]
            if not isinstance(error, GrpcError) or error.code != UNIMPLEMENTED:
                self._versions = (version,)
                return responses
            if len(self._versions) == 1:
                raise error
            unimplemented = error
        raise NoCri(f"{unimplemented}; CRI is disabled here, or failed to start") from unimplemented

    def identify(self) -> ContainerRuntime:
        """Return the runtime's name and version, without its endpoint."""
        version = self.call("Version")
        return ContainerRuntime(name=version.text(2), version=version.text(3))

    def sandboxes(self, ids: Sequence[str]) -> list[Container]:
        """Return the sandboxes that have a status: in CRI-O, also those that are being created."""
        # All are requested before the first response is awaited: a busy CRI-O takes its time for
        # each.
        responses = self._calls("PodSandboxStatus", [*map(encode_texts, ids)])
        sandboxes = [_sandbox(*pair) for pair in zip(ids, responses, strict=True)]
        return [sandbox for sandbox in sandboxes if sandbox]

    def has_container(self, container_id: str) -> bool:
        """Return whether this is the ID of a container that is no sandbox."""
        (response,) = self._calls("ContainerStatus", [encode_texts(container_id)])
        return _status_of(container_id, response) is not None

    def find_unlisted(self, ids: Sequence[str]) -> Collection[Container]:
        """Return those of these ids that the runtime has, although CRI does not list them."""
        runtime = self.identify()
        if runtime.name == CONTAINERD:
            return self.records(runtime, ids)

        return [sandbox for batch in _batches(ids) for sandbox in self.sandboxes(batch)]

    def records(self, runtime: ContainerRuntime, ids: Sequence[str]) -> Collection[Container]:
        """Return those of these ids that containerd has a record of."""
        listed = DecodedMessage(self.connection.call(_NAMESPACES)).messages(1)
        namespaces = {item.text(1) for item in listed}
        records: dict[str, Container] = {}

        state = SANDBOX_OF_ANOTHER_CLIENT
        for namespace in sorted(namespaces - {_KUBERNETES}):
            records |= self._records(_CONTAINERS, namespace, ids, _CONTAINER_RECORD, state)

        # The record of a pod replaces that of another client.
        state = SANDBOX_RECORDED
        records |= self._records(_CONTAINERS, _KUBERNETES, ids, _CONTAINER_RECORD, state)
        try:
            records |= self._records(_SANDBOXES, _KUBERNETES, ids, _SANDBOX_RECORD, state)
        except GrpcError as error:
            # Only the version shows that there is no such store yet, and not that it failed to
            # start.
            version = version_numbers(runtime.version)
            if error.code != UNIMPLEMENTED or version is None or version >= _FIRST_WITH_SANDBOXES:
                raise

        return records.values()

    def _records(
        self, method: str, namespace: str, ids: Sequence[str], fields: _Fields, state: str
    ) -> dict[str, Container]:
        """Return the records of these ids in one of containerd's namespaces, by id."""
        wanted = frozenset(ids)
        records = {}
        for response in self._record_lists(method, namespace, ids):
            for item in DecodedMessage(response).messages(1):
                container_id = item.text(1)
                if container_id not in wanted:
                    continue
                seconds = item.message(fields.created).integer(1)
                labels = item.text_map(fields.labels)
                records[container_id] = labeled_container(
                    container_id, state, seconds, labels, sandbox=True
                )
        return records

    def _record_lists(self, method: str, namespace: str, ids: Sequence[str]) -> Iterator[Encoded]:
        """Yield lists that have the records of these ids, and perhaps others."""
        metadata = {"containerd-namespace": namespace}
        if len(ids) > _FILTER_LIMIT:
            try:
                yield self.connection.call(method, metadata=metadata)
            except GrpcError as error:
                if error.code != RESOURCE_EXHAUSTED:
                    raise
            else:
                return
        for batch in _batches(ids):
            request = encode_texts(*(f"id=={container_id}" for container_id in batch))
            yield self.connection.call(method, request, metadata)


def _runtime_status(status: DecodedMessage, last_load: str) -> RuntimeStatus:
    """Return what a RuntimeStatus says of the network; older runtimes send no other condition.

    `last_load`: what containerd says of the last time that it loaded the CNI configuration.
    """
    load_error = (
        "" if last_load == _LOAD_SUCCEEDED else escape(truncate(last_load, _LONGEST_MESSAGE))
    )
    for condition in status.messages(1):
        if condition.text(1) != "NetworkReady":
            continue
        if condition.integer(2):
            return RuntimeStatus(network_ready=True, load_error=load_error)
        return RuntimeStatus(
            network_ready=False,
            reason=escape(truncate(condition.text(3))),
            message=escape(truncate(condition.text(4), _LONGEST_MESSAGE)),
            load_error=load_error,
        )
    return RuntimeStatus(network_ready=None, load_error=load_error)


def _cni_status(status: RuntimeStatus, cniconfig: str, config: str) -> CniStatus:
    """Return what containerd says: its loaded networks, and its configuration."""
    cni = json.loads(cniconfig)
    networks = [network["Config"] for network in cni["Networks"] or ()]
    loaded = [
        _loaded_configuration(network) for network in networks if network["Name"] != "cni-loopback"
    ]
    directory = Path(cni.get("PluginConfDir") or DEFAULT_DIRECTORY)

    runtime = json.loads(config)
    classes = runtime.get("containerd", {}).get("runtimes") or {}
    class_directories = {_path_or_none(each.get("cniConfDir")) for each in classes.values()}
    other_directories = filter(None, class_directories - {directory})

    return CniStatus(
        status,
        loaded=tuple(loaded),
        directory=directory,
        class_directories=tuple(sorted(other_directories)),
        plugin_directories=tuple(map(Path, cni.get("PluginDirs") or ())),
        root=_path_or_none(runtime.get("containerdRootDir")),
    )


def _path_or_none(text: str | None) -> Path | None:
    return Path(text) if text else None


def _loaded_configuration(network: Mapping[str, Any]) -> Configuration:
    """Return a network that containerd has loaded."""
    source = json.loads(network.get("Source") or "{}")
    plugins = [respelled(json.loads(plugin["Source"])) for plugin in network["Plugins"]]

    # It may have loaded more plugins than are in the network's own file.
    has_files = "name" in source and len(source.get("plugins") or ()) < len(plugins)
    return {"name": network["Name"], "plugins": plugins, PLUGIN_FILES: has_files}


def _batches(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + _BATCH_SIZE] for start in range(0, len(ids), _BATCH_SIZE))


def _status_of(container_id: str, response: Encoded | GrpcError) -> DecodedMessage | None:
    """Return the status of this container; None only if the runtime denies it by the id."""
    if isinstance(response, GrpcError):
        if response.code == NOT_FOUND and _denies(response.message, container_id):
            return None
        raise response

    status = DecodedMessage(response).message(1)
    if status.text(1) != container_id:
        raise ValueError(f"requested {container_id}, got {status.text(1)}")
    return status


def _denies(message: str, container_id: str) -> bool:
    """Return whether a message says that this container does not exist.

    NOT_FOUND can have other reasons, and only these words tell them apart.
    """
    if container_id in message:
        return "not found" in message
    return message.removesuffix(": not found") == _DENIAL_WITHOUT_ID


def _sandbox(container_id: str, response: Encoded | GrpcError) -> Container | None:
    """Return a sandbox by its status; None: it does not exist."""
    if isinstance(response, GrpcError):
        message = response.message
        if container_id in message and _NOT_YET_CREATED in message:
            return Container(container_id, _BEING_CREATED, 0, "", "", sandbox=True)
    status = _status_of(container_id, response)
    return _container(status, _POD_SANDBOX_STATUS) if status else None


def _container(item: DecodedMessage, fields: _Fields) -> Container:
    """Return a sandbox or a container of a list, or of its status."""
    number = item.integer(fields.state)
    state = fields.states[number] if 0 <= number < len(fields.states) else "unknown"
    return labeled_container(
        item.text(1),
        state,
        created=item.integer(fields.created) // 10**9,
        labels=item.text_map(fields.labels),
        sandbox=fields is not _CONTAINER,
    )
