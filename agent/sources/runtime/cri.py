"""Lists the sandboxes and containers of containerd and CRI-O. Changes nothing; no other module knows CRI.

CRI lists a sandbox only when it runs, long after its address was reserved. Both runtimes record it before: containerd
in its own stores, which are served on the same socket, and CRI-O in a list that only the status of a sandbox shows.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from agent.model.runtime import CONTAINERD, CRI_O, ContainerRuntime, version_numbers
from agent.model.snapshot import SANDBOX_NOT_READY, SANDBOX_RECORDED, Container
from agent.model.text import truncate
from agent.sources.host.cni_config import DEFAULT_DIRECTORY, CniStatus
from agent.sources.runtime.grpc_unary import Code, GrpcConnection, GrpcError
from agent.sources.runtime.protobuf import DecodedMessage, encode
from agent.sources.runtime.runtime import NoCri, checked_container, counted
from agent.sources.source_error import SourceError

_APIS: Final[tuple[str, ...]] = ("v1", "v1alpha2")
"""The versions of CRI, whose messages have the same fields: containerd < 1.6 and CRI-O < 1.20 have only the latter."""
_CONTAINERS: Final = "/containerd.services.containers.v1.Containers"
_NAMESPACES: Final = "/containerd.services.namespaces.v1.Namespaces"
_SANDBOXES: Final = "/containerd.services.sandbox.v1.Store"
_OF_SOCKET: Final = {"containerd.sock": CONTAINERD, "crio.sock": CRI_O}
_KUBERNETES: Final = "k8s.io"
"""containerd's namespace of everything that is created by CRI."""
_FIRST_WITH_SANDBOXES: Final = (1, 7, 0)
"""The first containerd that has a store of sandboxes."""

_ID: Final = re.compile("[0-9a-f]{64}")
_BATCH: Final = 32
"""Sandboxes that are asked for at once: an answer has room for 512 KiB of each, a pod has 256 of annotations."""
_SANDBOX_STATES: Final = {0: "running", 1: SANDBOX_NOT_READY}
_CONTAINER_STATES: Final = {0: "created", 1: "running", 2: "exited", 3: "unknown"}
"""It is being created, or what a failure has left of it."""
_BEING_CREATED: Final = "being created"
_OF_ANOTHER_CLIENT: Final = "in another namespace of containerd"
"""Of docker or nerdctl: whether it runs is not known here."""
_NOT_CREATED: Final = "sandbox not created"
"""CRI-O's words for a sandbox that is being created."""
_DENIALS_WITHOUT_ID: Final = frozenset({"an error occurred when try to find sandbox", "no sandbox buckets"})
"""containerd's words that do not name what was not found: of PodSandboxStatus, and of a store without any sandbox."""
_LABEL: Final = "io.kubernetes.pod."


class Cri:
    """One CRI endpoint. Every question opens a connection of its own, so a restarted runtime needs no attention."""

    def __init__(
        self,
        endpoint: Path,
        timeout: float,
        clock: Callable[[], float],
        require: Callable[[], None] = lambda: None,
        socket: Path | None = None,
    ) -> None:
        """`timeout`: seconds for each request, measured with `clock`.

        `require`: raises SourceError unless a live process serves the socket. `socket`: where the endpoint of the node
        is mounted; None: at its own path.
        """
        self._endpoint, self._timeout, self._clock, self._require = endpoint, timeout, clock, require
        self._socket = socket or endpoint

    @property
    def expected(self) -> ContainerRuntime:
        """What the name of its socket tells."""
        return ContainerRuntime(_OF_SOCKET.get(self._endpoint.name, "cri"), "", str(self._endpoint))

    def identify(self) -> ContainerRuntime:
        """Return the runtime's name and version; raises SourceError, and NoCri where there is no CRI."""
        with self._session() as session:
            return replace(session.identify(), endpoint=str(self._endpoint))

    def containers(self, asked: Collection[str]) -> tuple[Container, ...]:
        """List every sandbox and container, and those of the `asked` that only a record shows. Raises SourceError.

        `asked`: the ids in reservations. Those that are listed need no further request.
        """
        with self._session() as session:
            sandboxes = (_sandbox(one, labels=5) for one in session.cri_list("ListPodSandbox"))
            containers = (_container(one) for one in session.cri_list("ListContainers"))
            listed = counted(self._endpoint, chain(sandboxes, containers))
            missing = {one for one in asked if _ID.fullmatch(one)}.difference(one.id for one in listed)
            return (*listed, *_recorded(session, sorted(missing))) if missing else listed

    def has(self, container_id: str) -> bool:
        """Return whether this sandbox or container exists or is being created; raises SourceError.

        False only where the runtime denies each of them by this id.
        """
        if not _ID.fullmatch(container_id):
            raise SourceError(f"{self._endpoint}: {truncate(repr(container_id))} is no id of a container")
        with self._session() as session:
            if session.sandboxes([container_id]) or session.find(partial(session.cri, "ContainerStatus"), container_id):
                return True
            runtime = session.identify()
            return runtime.name == CONTAINERD and _has_record(session, runtime, container_id)

    def networks(self) -> CniStatus:
        """Return the networks that the runtime has loaded, without its own loopback; raises SourceError.

        CRI-O does not name them, and containerd does.
        """
        with self._session() as session:
            info = session.cri("Status", encode((1, 1))).text_map(2)
            if "cniconfig" not in info:
                return CniStatus()
            status = json.loads(info["cniconfig"])
            configured = [network["Config"] for network in status["Networks"] or ()]
            loaded = tuple(
                {"name": config["Name"], "plugins": [json.loads(plugin["Source"]) for plugin in config["Plugins"]]}
                for config in configured
                if config["Name"] != "cni-loopback"
            )
            directory = Path(status.get("PluginConfDir") or DEFAULT_DIRECTORY)
            classes = json.loads(info.get("config") or "{}").get("containerd", {}).get("runtimes") or {}
            own = {Path(one["cniConfDir"]) for one in classes.values() if one.get("cniConfDir")}
            return CniStatus(loaded, directory, tuple(sorted(own - {directory})))

    @contextmanager
    def _session(self) -> Iterator["_Session"]:
        self._require()
        try:
            with GrpcConnection(self._socket, self._timeout, self._clock) as connection:
                yield _Session(connection)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise SourceError(f"{self._endpoint}: cannot parse the response ({truncate(repr(error))})") from error


class _Session:
    """The questions of one connection."""

    def __init__(self, connection: GrpcConnection) -> None:
        self._connection, self._apis = connection, _APIS

    def cri(self, method: str, request: bytes = b"") -> DecodedMessage:
        (answer,) = self._cri(method, [request])
        if isinstance(answer, GrpcError):
            raise answer
        return DecodedMessage(answer)

    def cri_list(self, method: str) -> list[DecodedMessage]:
        return self.cri(method).messages(1)

    def _cri(self, method: str, requests: Sequence[bytes]) -> list[bytes | GrpcError]:
        """Call CRI, in the first version that is implemented."""
        for api in self._apis:
            answers = self._connection.calls(f"/runtime.{api}.RuntimeService/{method}", requests)
            error = answers[0]
            if not isinstance(error, GrpcError) or error.code != Code.UNIMPLEMENTED:
                self._apis = (api,)
                return answers
            if len(self._apis) == 1:
                raise error
            unimplemented = error
        raise NoCri(f"{unimplemented}; CRI is disabled here, or failed to start") from unimplemented

    def containerd(self, method: str, namespace: str, request: bytes = b"") -> DecodedMessage:
        return DecodedMessage(self._connection.call(method, request, _of(namespace)))

    def identify(self) -> ContainerRuntime:
        answer = self.cri("Version")
        return ContainerRuntime(answer.text(2), answer.text(3))

    def sandboxes(self, ids: Sequence[str]) -> list[Container]:
        """Return sandboxes by their status, which of CRI-O shows those that are being created as well.

        All are requested before the first answer is awaited: a busy CRI-O takes its time for each.
        """
        answers = self._cri("PodSandboxStatus", [encode((1, one)) for one in ids])
        return [found for one, answer in zip(ids, answers, strict=True) if (found := self._sandbox(one, answer))]

    def _sandbox(self, container_id: str, answer: bytes | GrpcError) -> Container | None:
        def answered(_: bytes) -> DecodedMessage:
            if isinstance(answer, GrpcError):
                raise answer
            return DecodedMessage(answer)

        try:
            found = self.find(answered, container_id)
        except GrpcError as error:
            if error.code == Code.NOT_FOUND and container_id in error.message and _NOT_CREATED in error.message:
                return Container(container_id, _BEING_CREATED, 0, "", "", sandbox=True)
            raise
        return None if found is None else _sandbox(found, labels=7)

    def find(self, call: Callable[[bytes], DecodedMessage], container_id: str) -> DecodedMessage | None:
        """Return what has this id; None only where the server denies it by the id."""
        try:
            found = call(encode((1, container_id))).message(1)
        except GrpcError as error:
            if error.code == Code.NOT_FOUND and _denies(error.message, container_id):
                return None
            raise
        if found.text(1) != container_id:
            raise ValueError(f"requested {container_id}, got {found.text(1)}")
        return found

    def namespaces(self) -> tuple[str, ...]:
        """Return containerd's namespaces, that of Kubernetes last."""
        answer = self._connection.call(f"{_NAMESPACES}/List")
        return (*{one.text(1) for one in DecodedMessage(answer).messages(1)}.difference({_KUBERNETES}), _KUBERNETES)


def _of(namespace: str) -> Mapping[str, str]:
    return {"containerd-namespace": namespace}


def _denies(message: str, container_id: str) -> bool:
    """Return whether a message says that this container does not exist: NOT_FOUND can have other reasons."""
    if container_id in message:
        return "not found" in message
    return message.removesuffix(": not found") in _DENIALS_WITHOUT_ID


def _recorded(session: _Session, ids: Sequence[str]) -> Collection[Container]:
    """Return those of these ids that CRI does not list, and the runtime has a record of."""
    runtime = session.identify()
    batches = [ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH)]
    if runtime.name != CONTAINERD:
        return [found for batch in batches for found in session.sandboxes(batch)]
    requests = [encode(*((1, f"id=={one}") for one in batch)) for batch in batches]
    asked = frozenset(ids)
    records = (*_container_records(session, requests), *_sandbox_records(session, runtime, requests))
    return {one.id: one for one in records if one.id in asked}.values()


def _container_records(session: _Session, requests: Sequence[bytes]) -> Iterator[Container]:
    for namespace in session.namespaces():
        state = SANDBOX_RECORDED if namespace == _KUBERNETES else _OF_ANOTHER_CLIENT
        for request in requests:
            for one in session.containerd(f"{_CONTAINERS}/List", namespace, request).messages(1):
                yield _record(one, state, labels=2, created=8)


def _sandbox_records(session: _Session, runtime: ContainerRuntime, requests: Sequence[bytes]) -> Iterator[Container]:
    try:
        for request in requests:
            for one in session.containerd(f"{_SANDBOXES}/List", _KUBERNETES, request).messages(1):
                yield _record(one, SANDBOX_RECORDED, labels=4, created=5)
    except GrpcError as error:
        if not _without_sandbox_store(error, runtime):
            raise


def _has_record(session: _Session, runtime: ContainerRuntime, container_id: str) -> bool:
    for namespace in session.namespaces():
        if session.find(partial(session.containerd, f"{_CONTAINERS}/Get", namespace), container_id):
            return True
    try:
        return bool(session.find(partial(session.containerd, f"{_SANDBOXES}/Get", _KUBERNETES), container_id))
    except GrpcError as error:
        if not _without_sandbox_store(error, runtime):
            raise
        return False


def _without_sandbox_store(error: GrpcError, runtime: ContainerRuntime) -> bool:
    """Return whether this containerd has no store of sandboxes because it is too old, which its version must show."""
    version = version_numbers(runtime.version)
    return error.code == Code.UNIMPLEMENTED and version is not None and version < _FIRST_WITH_SANDBOXES


def _sandbox(one: DecodedMessage, labels: int) -> Container:
    """Convert a PodSandbox or a PodSandboxStatus: the number of the labels is what differs."""
    state = _SANDBOX_STATES.get(one.integer(3), "unknown")
    return _labeled(one, state, one.integer(4) // 10**9, one.text_map(labels), sandbox=True)


def _container(one: DecodedMessage) -> Container:
    state = _CONTAINER_STATES.get(one.integer(6), "unknown")
    return _labeled(one, state, one.integer(7) // 10**9, one.text_map(8), sandbox=False)


def _record(one: DecodedMessage, state: str, labels: int, created: int) -> Container:
    """Convert a record of containerd, of a container or of a sandbox."""
    return _labeled(one, state, one.message(created).integer(1), one.text_map(labels), sandbox=True)


def _labeled(one: DecodedMessage, state: str, created: int, labels: Mapping[str, str], *, sandbox: bool) -> Container:
    if not (container_id := one.text(1)):
        raise ValueError("a container without an id")
    name, namespace = labels.get(f"{_LABEL}name", ""), labels.get(f"{_LABEL}namespace", "")
    pod = f"{namespace}/{name}" if name else ""
    return checked_container(
        Container(container_id, state, created, pod, labels.get(f"{_LABEL}uid", ""), sandbox=sandbox)
    )
