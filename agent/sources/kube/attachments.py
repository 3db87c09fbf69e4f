"""What the API server says of volumes that are missing: asked only then, an object at a time.

None of these rights is required. What the account may not read is said, and judged without.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Protocol
from urllib.parse import quote

from agent.checks.volumes.lost_volumes import same
from agent.model.snapshot import Known, Pod, Reading, Unavailable
from agent.model.text import truncate
from agent.model.volumes import Attachment, Attachments
from agent.sources.error import SourceError
from agent.sources.kube import volume_names
from agent.sources.kube.client import ApiError, Query

MOST: Final = 64
"""Objects that are asked for in one look."""
STANDS: Final = 60.0
"""Seconds for which an answer is good for the same question, also that there was none: each may be waited for long."""
_FORBIDDEN, _NOT_FOUND = 403, 404
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""What an object can be called. Pods and claims may name volumes as they like: `../../secrets/key` is another path."""


class Connection(Protocol):
    def get(self, path: str, query: Query = ()) -> bytes: ...
    def close(self) -> None: ...


class AttachmentsSource:
    """Asks the API server of one node, and keeps the answer, or that there was none, for a minute."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        node: str,
        within: Callable[[Callable[[], Attachments]], Attachments],
        clock: Callable[[], float],
    ) -> None:
        """`connect`: makes a connection for one look. `within`: bounds the whole of it. `clock`: seconds."""
        self._connect, self._node, self._within, self._clock = connect, node, within, clock
        self._last: tuple[float, frozenset[str], Reading[Attachments]] | None = None

    def read(self, volumes: Sequence[str], pods: Sequence[Pod]) -> Reading[Attachments]:
        """`volumes`: what is missing; `pods`: who waits."""
        about = frozenset((*volumes, *(pod.uid for pod in pods)))
        now = self._clock()
        if self._last and now - self._last[0] < STANDS and about <= self._last[1]:
            return self._last[2]
        try:
            told: Reading[Attachments] = Known(self._within(lambda: self._asked(volumes, pods)))
        except SourceError as error:
            told = Unavailable("attachments", str(error))
        self._last = now, about, told
        return told

    def _asked(self, volumes: Sequence[str], pods: Sequence[Pod]) -> Attachments:
        connection = self._connect()
        try:
            return _Inquiry(connection, self._node).of(volumes, pods)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise SourceError(f"API server: an object about volumes is none ({truncate(repr(error))})") from error
        finally:
            connection.close()


@dataclass
class _Inquiry:
    """The requests of one look."""

    connection: Connection
    node: str
    not_requested: dict[str, None] = field(default_factory=dict)
    left: int = MOST

    def of(self, volumes: Sequence[str], pods: Sequence[Pod]) -> Attachments:
        told = {volume: self._attachment(volume) for volume in volumes}
        known = {one.claim for one in told.values()}
        # Where the volumes lead to their claims, the claims need not be asked for their volumes.
        if not all(one.claim for one in told.values()):
            for claim in (one for pod in pods for one in _claims(pod) if one not in known):
                if named := self._volume_of(claim):
                    volume = next((one for one in volumes if same(named, one)), named)
                    before = told.get(volume) or Attachment(volume)
                    told[volume] = Attachment(volume, before.attached, before.failed, claim)
        failed = tuple(pod.uid for pod in pods if self._attaching_failed(pod))
        return Attachments(tuple(told.values()), failed, tuple(self.not_requested))

    def _attachment(self, volume: str) -> Attachment:
        if (parts := volume_names.csi_parts(volume)) is None:
            return Attachment(volume)
        driver, handle = parts
        # As the controller makes the name: it can be asked for without a list of all.
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
        _, told = self._object(f"/api/v1/namespaces/{quote(namespace)}", "persistentvolumeclaims", name)
        bound = (told.get("spec") or {}).get("volumeName")
        return volume_names.unique_name(self._persistent_volume(bound).get("spec") or {}, bound) if bound else ""

    def _persistent_volume(self, name: str) -> Mapping[str, Any]:
        return self._object("/api/v1", "persistentvolumes", name)[1]

    def _attaching_failed(self, pod: Pod) -> bool:
        namespace = quote(pod.name.partition("/")[0])
        selector = f"involvedObject.uid={pod.uid},reason=FailedAttachVolume"
        # Few match, and servers before 1.24 look through the namespace's events in steps of this many.
        query = (("fieldSelector", selector), ("limit", "500"))
        _, told = self._get("events", f"/api/v1/namespaces/{namespace}/events", query, verb="list")
        items = told.get("items")
        if items is not None and not isinstance(items, list):
            raise TypeError(f"items: {type(items).__name__}")
        return bool(items)

    def _object(self, below: str, resource: str, name: str) -> tuple[bool, Mapping[str, Any]]:
        return self._get(resource, f"{below}/{resource}/{name}") if _NAME.fullmatch(name) else (True, {})

    def _get(self, resource: str, path: str, query: Query = (), verb: str = "get") -> tuple[bool, Mapping[str, Any]]:
        """Return whether there is an answer, and the object; one that does not exist is empty."""
        right = f"{verb} {resource}"
        if right in self.not_requested:
            return False, {}
        if not self.left:
            self.not_requested[f"more than {MOST} objects"] = None
            return False, {}
        self.left -= 1
        try:
            tree = json.loads(self.connection.get(path, query))
        except ApiError as refused:
            if refused.status == _NOT_FOUND:
                return True, {}
            if refused.status != _FORBIDDEN:
                raise
            self.not_requested[right] = None
            return False, {}
        if not isinstance(tree, dict):
            raise TypeError(f"{resource}: {type(tree).__name__}")
        return True, tree


def _claims(pod: Pod) -> Iterator[str]:
    namespace = pod.name.partition("/")[0]
    yield from (f"{namespace}/{claim}" for claim in pod.claims)
