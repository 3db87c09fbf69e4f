"""What the API server says about volumes that are missing from the node's status. It is asked only then, by name.

No permission is required: what the account may not read is reported as not requested.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from agent.checks.detached_volume import same
from agent.model.snapshot import Pod
from agent.model.volumes import Attachment, Attachments
from agent.sources.kube import volume_names
from agent.sources.kube.client import FORBIDDEN, NOT_FOUND, ApiError, CachedRequest, Get, Inquire, Query

MAX_REQUESTS: Final = 64
"""Requests for one snapshot."""
KEPT_FOR: Final = 60.0
"""Seconds."""
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""A valid object name. Pods and claims may contain any volume name: `../../secrets/key` would be another path."""


class AttachmentsSource:
    """Asks the API server of one node, at most once a minute about the same volumes and pods."""

    def __init__(self, inquire: Inquire, node: str, clock: Callable[[], float]) -> None:
        self._node, self._cached = node, CachedRequest[Attachments](inquire, clock, KEPT_FOR)

    def read(self, volumes: Sequence[str], pods: Sequence[Pod]) -> Attachments:
        """Raises SourceError. `volumes`: those that are missing; `pods`: those that wait."""
        subjects = frozenset((*volumes, *(pod.uid for pod in pods)))
        return self._cached.get(lambda get: _Inquiry(get, self._node).attachments(volumes, pods), subjects)


class _Inquiry:
    """The requests of one snapshot."""

    def __init__(self, get: Get, node: str) -> None:
        self._get, self._node, self._left = get, node, MAX_REQUESTS
        self._not_requested: dict[str, None] = {}

    def attachments(self, volumes: Sequence[str], pods: Sequence[Pod]) -> Attachments:
        found = {volume: self._attachment(volume) for volume in volumes}
        known = {attachment.claim for attachment in found.values()}
        # If every volume leads to its claim, the claims need not be asked for their volumes.
        if "" in known:
            claims = (f"{pod.name.partition('/')[0]}/{claim}" for pod in pods for claim in pod.claims)
            for claim in claims:
                if claim not in known:
                    self._add_claim(found, claim, volumes)
        failed = tuple(pod.uid for pod in pods if self._attach_failed(pod))
        return Attachments(tuple(found.values()), failed, tuple(self._not_requested))

    def _add_claim(self, found: dict[str, Attachment], claim: str, volumes: Sequence[str]) -> None:
        if bound := self._volume_of(claim):
            volume = next((volume for volume in volumes if same(bound, volume)), bound)
            found[volume] = replace(found.get(volume) or Attachment(volume), claim=claim)

    def _attachment(self, volume: str) -> Attachment:
        if (parts := volume_names.csi_parts(volume)) is None:
            return Attachment(volume)
        driver, handle = parts
        # The controller derives the name, so the object can be requested without a list.
        name = f"csi-{sha256(f'{handle}{driver}{self._node}'.encode()).hexdigest()}"
        described = self._object("/apis/storage.k8s.io/v1", "volumeattachments", name)
        if described is None:
            return Attachment(volume)
        metadata, status, spec = (described.get(part) or {} for part in ("metadata", "status", "spec"))
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
        found = self._object(f"/api/v1/namespaces/{quote(namespace)}", "persistentvolumeclaims", name) or {}
        bound = (found.get("spec") or {}).get("volumeName")
        return volume_names.unique_name(self._persistent_volume(bound), bound) if bound else ""

    def _persistent_volume(self, name: str) -> Mapping[str, Any]:
        """Return what describes it; empty: it does not exist, or is not known."""
        return (self._object("/api/v1", "persistentvolumes", name) or {}).get("spec") or {}

    def _attach_failed(self, pod: Pod) -> bool:
        namespace = quote(pod.name.partition("/")[0])
        selector = f"involvedObject.uid={pod.uid},reason=FailedAttachVolume"
        # Few events match, and servers before 1.24 search the namespace's events in pages of this size.
        query = (("fieldSelector", selector), ("limit", "500"))
        items = (self._request("list events", f"/api/v1/namespaces/{namespace}/events", query) or {}).get("items")
        if items is not None and not isinstance(items, list):
            raise TypeError(f"items: {type(items).__name__}")
        return bool(items)

    def _object(self, below: str, resource: str, name: str) -> Mapping[str, Any] | None:
        return self._request(f"get {resource}", f"{below}/{resource}/{name}") if _NAME.fullmatch(name) else {}

    def _request(self, right: str, path: str, query: Query = ()) -> Mapping[str, Any] | None:
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
