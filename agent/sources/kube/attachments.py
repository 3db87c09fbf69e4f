"""What the API server says about volumes that are missing from the node's status. It is asked only then, by name."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final
from urllib.parse import quote

from agent.checks.cluster import detached_volume
from agent.model.snapshot import Pod, Snapshot
from agent.model.volumes import Attachment, Attachments
from agent.sources.kube.client import CachedRequest, Get, Inquire, Query
from agent.sources.kube.errors import FORBIDDEN, NOT_FOUND, ApiError
from agent.sources.kube.fields import Object
from agent.sources.kube.objects import unique_volume_name
from agent.sources.source import Source

MAX_REQUESTS: Final = 64  # requests for one snapshot
KEPT_FOR: Final = 60.0  # seconds
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""A valid object name. Pods and claims may contain any volume name: `../../secrets/key` would be another path."""
_CSI: Final = re.compile(
    r"kubernetes\.io/csi/([^^]*)\^(.*)", re.DOTALL
)  # the driver and its handle


class AttachmentsSource(Source):
    """Asks the API server of one node, at most once a minute about the same volumes and pods."""

    def __init__(self, inquire: Inquire, node: str, clock: Callable[[], float]) -> None:
        self._node, self._cached = node, CachedRequest[Attachments](inquire, clock, KEPT_FOR)

    name = "attachments"

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        needed = detached_volume.request(snapshot)
        return None if needed else "no pod waits for a volume that is missing"

    def read(self, snapshot: Snapshot) -> Attachments:
        """Raises SourceError. What the account may not read is not requested."""
        request = detached_volume.request(snapshot) or detached_volume.Request((), ())
        subjects = frozenset((*request.volumes, *(pod.uid for pod in request.pods)))
        return self._cached.get(
            lambda get: _Inquiry(get, self._node).attachments(request), subjects
        )


class _Inquiry:
    def __init__(self, get: Get, node: str) -> None:
        self._get, self._node, self._left = get, node, MAX_REQUESTS
        self._not_requested: dict[str, None] = {}

    def attachments(self, request: detached_volume.Request) -> Attachments:
        found = {volume: self._attachment(volume) for volume in request.volumes}
        known = {attachment.claim for attachment in found.values()}
        claims = (
            f"{pod.name.partition('/')[0]}/{claim}" for pod in request.pods for claim in pod.claims
        )
        # If every volume leads to its claim, the claims need not be asked for their volumes.
        for claim in claims if "" in known else ():
            if claim not in known:
                self._add_claim(found, claim, request.volumes)
        failed = tuple(pod.uid for pod in request.pods if self._attach_failed(pod))
        return Attachments(tuple(found.values()), failed, tuple(self._not_requested))

    def _add_claim(self, found: dict[str, Attachment], claim: str, volumes: Sequence[str]) -> None:
        if bound := self._volume_of(claim):
            volume = next(
                (volume for volume in volumes if detached_volume.same(bound, volume)), bound
            )
            found[volume] = replace(found.get(volume) or Attachment(volume), claim=claim)

    def _attachment(self, volume: str) -> Attachment:
        if (named := _CSI.fullmatch(volume)) is None:
            return Attachment(volume)
        driver, handle = named.groups()
        # The controller derives the name, so the object can be requested without a list.
        name = f"csi-{sha256(f'{handle}{driver}{self._node}'.encode()).hexdigest()}"
        described = self._object("/apis/storage.k8s.io/v1", "volumeattachments", name)
        if described is None:
            return Attachment(volume)
        metadata, status, spec = (
            described.get(part) or {} for part in ("metadata", "status", "spec")
        )
        attached = status.get("attached") is True and not metadata.get("deletionTimestamp")
        name = str((spec.get("source") or {}).get("persistentVolumeName") or "")
        reference = self._persistent_volume(name).get("claimRef")
        return Attachment(
            volume,
            attached=attached,
            failed=bool(status.get("attachError")) and not attached,
            claim=f"{reference['namespace']}/{reference['name']}" if reference else "",
        )

    def _volume_of(self, claim: str) -> str:
        namespace, _, name = claim.partition("/")
        found = (
            self._object(f"/api/v1/namespaces/{quote(namespace)}", "persistentvolumeclaims", name)
            or {}
        )
        bound = (found.get("spec") or {}).get("volumeName")
        return unique_volume_name(self._persistent_volume(bound), bound) if bound else ""

    def _persistent_volume(self, name: str) -> Object:
        """Return what describes it; empty: it does not exist, or is not known."""
        return (self._object("/api/v1", "persistentvolumes", name) or {}).get("spec") or {}

    def _attach_failed(self, pod: Pod) -> bool:
        namespace = quote(pod.name.partition("/")[0])
        selector = f"involvedObject.uid={pod.uid},reason=FailedAttachVolume"
        # Few events match, and servers before 1.24 search the namespace's events in pages of this size.
        query = (("fieldSelector", selector), ("limit", "500"))
        items = (
            self._request("list events", f"/api/v1/namespaces/{namespace}/events", query) or {}
        ).get("items")
        if items is not None and not isinstance(items, list):
            raise TypeError(f"items: {type(items).__name__}")
        return bool(items)

    def _object(self, below: str, resource: str, name: str) -> Object | None:
        return (
            self._request(f"get {resource}", f"{below}/{resource}/{name}")
            if _NAME.fullmatch(name)
            else {}
        )

    def _request(self, right: str, path: str, query: Query = ()) -> Object | None:
        """Return an object, which is empty if it does not exist; None: it was not requested, or may not be."""
        if right in self._not_requested:
            return None
        if not self._left:
            self._not_requested[f"more than {MAX_REQUESTS} objects"] = None
            return None
        self._left -= 1
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
