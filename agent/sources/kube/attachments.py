"""What the API server says about volumes that are missing from the node's status.

They are requested only then, by name.
"""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from typing import Final
from urllib.parse import quote

from agent.checks.cluster import detached_volume
from agent.model.snapshot import Pod, Snapshot
from agent.model.volumes import Attachment, Attachments
from agent.sources.kube.cached_request import CachedRequest, Get, OpenSession
from agent.sources.kube.connection import Query
from agent.sources.kube.errors import FORBIDDEN, NOT_FOUND, ApiError
from agent.sources.kube.fields import Object
from agent.sources.kube.volume_names import unique_volume_name
from agent.sources.source import Source

MAX_REQUESTS: Final = 64
"""Requests for one snapshot."""
CACHED_FOR: Final = 60.0
"""Seconds."""
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""A valid object name. Pods and claims may contain any volume name: `../../secrets/key` would be
another path."""
_CSI: Final = re.compile(r"kubernetes\.io/csi/([^^]*)\^(.*)", re.DOTALL)
"""The driver and its handle."""


class AttachmentsSource(Source):
    """Requests each volume and pod at most once a minute."""

    name = "attachments"

    def __init__(self, open_session: OpenSession, node: str, clock: Callable[[], float]) -> None:
        self._node = node
        self._cached = CachedRequest[Attachments](open_session, clock, CACHED_FOR)

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        needed = detached_volume.request(snapshot)
        return None if needed else "no pod waits for a volume that is missing"

    def read(self, snapshot: Snapshot) -> Attachments:
        """Return what the API server knows; raises SourceError.

        What the account may not read is named in the value.
        """
        request = detached_volume.request(snapshot) or detached_volume.Request((), ())
        subjects = frozenset((*request.volumes, *(pod.uid for pod in request.pods)))
        return self._cached.get(lambda get: _Lookup(get, self._node).attachments(request), subjects)


class _Lookup:
    """The requests for one snapshot."""

    def __init__(self, get: Get, node: str) -> None:
        self._get = get
        self._node = node
        self._requests_left = MAX_REQUESTS
        self._not_requested: dict[str, None] = {}
        """Rights that the account lacks, and that there were too many requests; in order."""

    def attachments(self, request: detached_volume.Request) -> Attachments:
        attachments = {volume: self._attachment(volume) for volume in request.volumes}
        claims = {attachment.claim for attachment in attachments.values()}
        # If every volume leads to its claim, the claims need not be requested for their volumes.
        if None in claims:
            for pod in request.pods:
                namespace = pod.name.partition("/")[0]
                for name in pod.claims:
                    if f"{namespace}/{name}" not in claims:
                        self._add_claim(attachments, namespace, name, request.volumes)
        failed = tuple(pod.uid for pod in request.pods if self._has_attach_failure(pod))
        return Attachments(tuple(attachments.values()), failed, tuple(self._not_requested))

    def _add_claim(
        self,
        attachments: dict[str, Attachment],
        namespace: str,
        name: str,
        volumes: tuple[str, ...],
    ) -> None:
        bound = self._bound_volume(namespace, name)
        if bound is None:
            return
        # A volume can have an in-tree name and one of CSI: that of the request counts.
        same = (volume for volume in volumes if detached_volume.same(bound, volume))
        volume = next(same, bound)
        attachment = attachments.get(volume) or Attachment(volume)
        attachments[volume] = replace(attachment, claim=f"{namespace}/{name}")

    def _attachment(self, volume: str) -> Attachment:
        csi = _CSI.fullmatch(volume)
        if csi is None:
            return Attachment(volume)
        driver, handle = csi.groups()
        # The controller derives the name, so the object can be requested without a list.
        name = f"csi-{sha256(f'{handle}{driver}{self._node}'.encode()).hexdigest()}"
        described = self._object("/apis/storage.k8s.io/v1", "volumeattachments", name)
        if described is None:
            return Attachment(volume)

        status = described.get("status") or {}
        deleting = (described.get("metadata") or {}).get("deletionTimestamp")
        attached = status.get("attached") is True and not deleting
        source = (described.get("spec") or {}).get("source") or {}
        persistent_volume = str(source.get("persistentVolumeName") or "")
        reference = self._volume_spec(persistent_volume).get("claimRef")
        return Attachment(
            volume,
            attached=attached,
            failed=bool(status.get("attachError")) and not attached,
            claim=f"{reference['namespace']}/{reference['name']}" if reference else None,
        )

    def _bound_volume(self, namespace: str, claim: str) -> str | None:
        """Return the unique name of the volume that a claim is bound to; None: none is known."""
        path = f"/api/v1/namespaces/{quote(namespace)}"
        described = self._object(path, "persistentvolumeclaims", claim) or {}
        name = (described.get("spec") or {}).get("volumeName")
        return unique_volume_name(self._volume_spec(name), name) if name else None

    def _volume_spec(self, name: str) -> Object:
        """Return the spec of a PersistentVolume; empty: it does not exist, or is not known."""
        return (self._object("/api/v1", "persistentvolumes", name) or {}).get("spec") or {}

    def _has_attach_failure(self, pod: Pod) -> bool:
        namespace = quote(pod.name.partition("/")[0])
        path = f"/api/v1/namespaces/{namespace}/events"
        selector = f"involvedObject.uid={pod.uid},reason=FailedAttachVolume"
        # Few events match, and servers before 1.24 search the namespace's events in pages of this
        # size.
        query = (("fieldSelector", selector), ("limit", "500"))
        events = self._request("list events", path, query) or {}
        items = events.get("items")
        if items is not None and not isinstance(items, list):
            raise TypeError(f"items: {type(items).__name__}")
        return bool(items)

    def _object(self, path: str, resource: str, name: str) -> Object | None:
        if not _NAME.fullmatch(name):
            return {}
        return self._request(f"get {resource}", f"{path}/{resource}/{name}")

    def _request(self, right: str, path: str, query: Query = ()) -> Object | None:
        """Return an object, which is empty if it does not exist.

        None: it was not requested, or may not be. Raises SourceError.
        """
        if right in self._not_requested:
            return None
        if not self._requests_left:
            self._not_requested[f"more than {MAX_REQUESTS} objects"] = None
            return None
        self._requests_left -= 1
        try:
            tree = json.loads(self._get(path, query))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return {}
            if error.status != FORBIDDEN:
                raise
            self._not_requested[right] = None
            return None
        if not isinstance(tree, dict):
            raise TypeError(f"{path}: {type(tree).__name__}")
        return tree
