"""What the API server says about volumes that are missing from the node's status. It is asked only then, by name.

No permission is required: what the account may not read is reported as not requested.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, Protocol
from urllib.parse import quote

from agent.checks.volumes.lost_volumes import same
from agent.model.snapshot import Known, Pod, Reading, Unavailable
from agent.model.text import truncate
from agent.model.volumes import Attachment, Attachments
from agent.sources.kube import volume_names
from agent.sources.kube.client import ApiError, Query
from agent.sources.source_error import SourceError
from agent.sources.ttl_cache import TTLCache

MAX_REQUESTS: Final = 64
"""Requests for one snapshot."""
KEPT_FOR: Final = 60.0
"""Seconds for which an answer, or a failure, is kept: each request may take long."""
_FORBIDDEN, _NOT_FOUND = 403, 404
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""A valid object name. Pods and claims may contain any volume name: `../../secrets/key` would be another path."""


class Connection(Protocol):
    def get(self, path: str, query: Query = ()) -> bytes: ...
    def close(self) -> None: ...


class AttachmentsSource:
    """Asks the API server of one node, and keeps the answer, or the failure, for a minute."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        node: str,
        within: Callable[[Callable[[], Attachments]], Attachments],
        clock: Callable[[], float],
    ) -> None:
        """`connect`: opens a connection for one snapshot. `within`: bounds all its requests. `clock`: seconds."""
        self._connect, self._node, self._within = connect, node, within
        self._cache = TTLCache[Attachments](clock, KEPT_FOR)

    def read(self, volumes: Sequence[str], pods: Sequence[Pod]) -> Reading[Attachments]:
        """`volumes`: those that are missing; `pods`: those that wait."""
        about = frozenset((*volumes, *(pod.uid for pod in pods)))
        try:
            return Known(self._cache.get(lambda: self._within(lambda: self._ask(volumes, pods)), about))
        except SourceError as error:
            return Unavailable("attachments", str(error))

    def _ask(self, volumes: Sequence[str], pods: Sequence[Pod]) -> Attachments:
        connection = self._connect()
        try:
            return _Inquiry(connection, self._node).attachments(volumes, pods)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SourceError(f"API server: malformed volume object ({truncate(repr(error))})") from error
        finally:
            connection.close()


@dataclass
class _Inquiry:
    """The requests of one snapshot."""

    connection: Connection
    node: str
    not_requested: dict[str, None] = field(default_factory=dict)
    left: int = MAX_REQUESTS

    def attachments(self, volumes: Sequence[str], pods: Sequence[Pod]) -> Attachments:
        found = {volume: self._attachment(volume) for volume in volumes}
        # If every volume leads to its claim, the claims need not be asked for their volumes.
        if not all(one.claim for one in found.values()):
            known = {one.claim for one in found.values()}
            for claim in (one for pod in pods for one in _claims(pod) if one not in known):
                self._add_claim(found, claim, volumes)
        failed = tuple(pod.uid for pod in pods if self._attach_failed(pod))
        return Attachments(tuple(found.values()), failed, tuple(self.not_requested))

    def _add_claim(self, found: dict[str, Attachment], claim: str, volumes: Sequence[str]) -> None:
        if named := self._volume_of(claim):
            volume = next((one for one in volumes if same(named, one)), named)
            found[volume] = replace(found.get(volume) or Attachment(volume), claim=claim)

    def _attachment(self, volume: str) -> Attachment:
        if (parts := volume_names.csi_parts(volume)) is None:
            return Attachment(volume)
        driver, handle = parts
        # The controller derives the name, so the object can be requested without a list.
        name = f"csi-{sha256(f'{handle}{driver}{self.node}'.encode()).hexdigest()}"
        answered, one = self._object("/apis/storage.k8s.io/v1", "volumeattachments", name)
        if not answered:
            return Attachment(volume)
        status = one.get("status") or {}
        attached = status.get("attached") is True and not (one.get("metadata") or {}).get("deletionTimestamp")
        source = (one.get("spec") or {}).get("source") or {}
        return Attachment(
            volume,
            attached=attached,
            failed=bool(status.get("attachError")) and not attached,
            claim=self._claim_of(str(source.get("persistentVolumeName") or "")),
        )

    def _claim_of(self, persistent_volume: str) -> str:
        reference = (self._persistent_volume(persistent_volume).get("spec") or {}).get("claimRef")
        return f"{reference['namespace']}/{reference['name']}" if reference else ""

    def _volume_of(self, claim: str) -> str:
        namespace, _, name = claim.partition("/")
        _, found = self._object(f"/api/v1/namespaces/{quote(namespace)}", "persistentvolumeclaims", name)
        bound = (found.get("spec") or {}).get("volumeName")
        return volume_names.unique_name(self._persistent_volume(bound).get("spec") or {}, bound) if bound else ""

    def _persistent_volume(self, name: str) -> Mapping[str, Any]:
        return self._object("/api/v1", "persistentvolumes", name)[1]

    def _attach_failed(self, pod: Pod) -> bool:
        namespace = quote(pod.name.partition("/")[0])
        selector = f"involvedObject.uid={pod.uid},reason=FailedAttachVolume"
        # Few events match, and servers before 1.24 search the namespace's events in pages of this size.
        query = (("fieldSelector", selector), ("limit", "500"))
        _, found = self._get("events", f"/api/v1/namespaces/{namespace}/events", query, verb="list")
        items = found.get("items")
        if items is not None and not isinstance(items, list):
            raise TypeError(f"items: {type(items).__name__}")
        return bool(items)

    def _object(self, below: str, resource: str, name: str) -> tuple[bool, Mapping[str, Any]]:
        return self._get(resource, f"{below}/{resource}/{name}") if _NAME.fullmatch(name) else (True, {})

    def _get(self, resource: str, path: str, query: Query = (), verb: str = "get") -> tuple[bool, Mapping[str, Any]]:
        """Return whether the server answered, and the object; one that does not exist is empty."""
        right = f"{verb} {resource}"
        if right in self.not_requested:
            return False, {}
        if not self.left:
            self.not_requested[f"more than {MAX_REQUESTS} objects"] = None
            return False, {}
        self.left -= 1
        try:
            tree = json.loads(self.connection.get(path, query))
        except ApiError as error:
            if error.status == _NOT_FOUND:
                return True, {}
            if error.status != _FORBIDDEN:
                raise
            self.not_requested[right] = None
            return False, {}
        if not isinstance(tree, dict):
            raise TypeError(f"{resource}: {type(tree).__name__}")
        return True, tree


def _claims(pod: Pod) -> Iterator[str]:
    namespace = pod.name.partition("/")[0]
    yield from (f"{namespace}/{claim}" for claim in pod.claims)
