"""What the API server says about volumes that are missing from the node's status.

They are requested only then, by name.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from agent.checks.cluster import detached_volume
from agent.checks.cluster.volume_causes import ATTACH_FAILED, ENTRIES
from agent.model import catalog
from agent.model.snapshot import VOLUME_REASONS, Pod, Snapshot
from agent.model.text import escape, truncate
from agent.model.volumes import Attachment, Attachments, Holder, VolumeEvent
from agent.sources.json_tree import subobject, text_field
from agent.sources.kube.cached_request import CachedRequest, Get, OpenSession
from agent.sources.kube.connection import Query
from agent.sources.kube.errors import FORBIDDEN, NOT_FOUND, ApiError
from agent.sources.kube.fields import Object, objects
from agent.sources.kube.node_object import NODES_PATH, parse_node
from agent.sources.kube.pod_events import pod_events
from agent.sources.kube.volume_names import unique_volume_names
from agent.sources.source import Source
from agent.sources.source_error import SourceError

MAX_REQUESTS: Final = 64
"""Requests for one snapshot."""
CACHED_FOR: Final = 60.0
"""Seconds."""

_MAX_PAGES: Final = 20
"""Of nodes. Where the controller is in trouble, the agents of all nodes list them at once."""
_NODES_IN_PAGE: Final = 50
_NODES_CACHED_FOR: Final = 600.0
"""Seconds. A list of all nodes is large. A volume that is missing later is reported only after as
long: until then, who has it is unknown."""
_Holders: TypeAlias = Mapping[str, tuple[Holder, ...]]
"""By volume; without those whose holders are unknown."""

_STORAGE: Final = "/apis/storage.k8s.io/v1"
_FAILED_ATTACH: Final = "FailedAttachVolume"
_EXCLUSIVE: Final = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})
"""The access modes that allow one node."""
_VOLUME: Final = re.compile(r'for volume "([^"]{1,253})"')
"""The PersistentVolume, in the messages of the controller and the kubelet."""
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
"""A valid object name. Pods and claims may contain any volume name: `../../secrets/key` would be
another path."""
_CSI: Final = re.compile(r"kubernetes\.io/csi/([^^]*)\^(.*)", re.DOTALL)
"""The driver and its handle."""


class AttachmentsSource(Source):
    """Requests each volume and pod at most once a minute.

    All nodes are listed at most every ten minutes, and only if a volume is missing for so long that
    no attach takes as long.
    """

    name = "attachments"

    def __init__(self, open_session: OpenSession, node: str, clock: Callable[[], float]) -> None:
        self._node = node
        self._cached = CachedRequest[Attachments](open_session, clock, CACHED_FOR)
        self._holders = CachedRequest[_Holders](open_session, clock, _NODES_CACHED_FOR)

    def reason_not_needed(self, snapshot: Snapshot) -> str | None:
        needed = detached_volume.request(snapshot)
        return None if needed else "no pod waits for a volume that is missing"

    def read(self, snapshot: Snapshot) -> Attachments:
        """Return what the API server knows; raises SourceError.

        What the account may not read is named in the value.
        """
        request = detached_volume.request(snapshot) or detached_volume.Request((), ())
        subjects = frozenset(request.volumes).union(pod.uid for pod in request.pods)
        found = self._cached.get(
            lambda get: _Lookup(get, self._node).attachments(request), subjects
        )
        return self._with_holders(found, request) if request.is_late else found

    def _with_holders(self, found: Attachments, request: detached_volume.Request) -> Attachments:
        """Add who else has each volume that nothing else explains."""
        missing = [each for each in found.volumes if each.volume in request.volumes]
        volumes = [each.volume for each in missing if _is_unexplained(each)]
        if not volumes:
            return found

        try:
            holders = self._holders.get(lambda get: _read_holders(get, self._node, volumes))
        except SourceError as error:
            if isinstance(error, ApiError) and error.status == FORBIDDEN:
                return replace(found, not_requested=(*found.not_requested, "list nodes"))
            return found  # who has it stays unknown

        with_holders = (
            replace(attachment, holders=holders.get(attachment.volume))
            if attachment.volume in volumes
            else attachment
            for attachment in found.volumes
        )
        return replace(found, volumes=tuple(with_holders))


def _is_unexplained(attachment: Attachment) -> bool:
    """Return whether its VolumeAttachment does not say why it is missing."""
    return not (attachment.attached or attachment.attach_error or attachment.detach_error)


def _read_holders(get: Get, own: str, volumes: Sequence[str]) -> _Holders:
    """Return the other nodes to which each volume is attached; of none if there are too many nodes.

    Without a volume that is only in use on another node: its pod may wait for the volume as well.
    """
    holders: dict[str, list[Holder]] = {volume: [] for volume in volumes}
    in_use = set()
    position: Query = ()
    for pages_left in reversed(range(_MAX_PAGES)):
        page = json.loads(get(NODES_PATH, (("limit", str(_NODES_IN_PAGE)), *position)))

        nodes = map(parse_node, objects(page["items"]))
        others = (node for node in nodes if node.name != own)
        for node, volume in itertools.product(others, volumes):
            if _lists(node.volumes_attached, volume):
                holders[volume].append(Holder(node.name, node.ready))
            elif _lists(node.volumes_in_use, volume):
                in_use.add(volume)

        metadata = page["metadata"]
        more = text_field(metadata, "continue")
        if not more:
            unknown = {volume for volume in in_use if not holders[volume]}
            return {volume: tuple(holders[volume]) for volume in volumes if volume not in unknown}
        nodes_left = metadata.get("remainingItemCount") or 0  # servers before 1.15: unknown
        if nodes_left > pages_left * _NODES_IN_PAGE:
            break
        position = (("continue", more),)
    return {}


def _lists(volumes: Iterable[str], volume: str) -> bool:
    """Return whether a volume is among those of a node's status, by either of its names."""
    return any(detached_volume.is_same_volume(volume, other) for other in volumes)


@dataclass
class _Lookup:
    """The requests for one snapshot."""

    get: Get
    node: str

    _requests_left: int = MAX_REQUESTS
    _not_requested: dict[str, None] = field(default_factory=dict)
    """Rights that the account lacks, and that there were too many requests; in order."""
    _events_read: bool = True
    """Whether those of every pod were read."""

    def attachments(self, request: detached_volume.Request) -> Attachments:
        """Return what is known of the volumes and of the pods that wait; raises SourceError."""
        attachments = {volume: self._attachment(volume) for volume in request.volumes}
        claims = {attachment.claim for attachment in attachments.values()}
        # If every volume leads to its claim, the claims need not be requested for their volumes.
        if None in claims:
            for pod in request.pods:
                namespace = pod.name.partition("/")[0]
                for name in pod.claims:
                    if f"{namespace}/{name}" not in claims:
                        self._add_claim(attachments, namespace, name, request.volumes)

        events = [(pod, event) for pod in request.pods for event in self._events(pod)]
        failed = {pod.uid: None for pod, event in events if event.get("reason") == _FAILED_ATTACH}
        if request.is_late:
            attachments = self._with_drivers(attachments, request.volumes)

        return Attachments(
            volumes=tuple(attachments.values()),
            failed_pods=tuple(failed),
            not_requested=tuple(self._not_requested),
            events=_last_events(events),
            events_read=self._events_read,
        )

    def _with_drivers(
        self, attachments: dict[str, Attachment], volumes: tuple[str, ...]
    ) -> dict[str, Attachment]:
        """Add whether the driver of each volume is registered here, where nothing explains it."""
        drivers = {
            volume: csi[1]
            for volume in volumes
            if _is_unexplained(attachments[volume]) and (csi := _CSI.fullmatch(volume))
        }
        csi_node = self._object(_STORAGE, "csinodes", self.node) if drivers else None
        if not csi_node:  # servers before 1.17 have none
            return attachments

        listed = objects(subobject(csi_node, "spec").get("drivers"))
        registered = {str(driver.get("name")) for driver in listed}
        return attachments | {
            volume: replace(attachments[volume], driver_registered=driver in registered)
            for volume, driver in drivers.items()
        }

    def _add_claim(
        self,
        attachments: dict[str, Attachment],
        namespace: str,
        name: str,
        volumes: tuple[str, ...],
    ) -> None:
        """Add a claim to the volume that it is bound to, which may be another than `volumes`."""
        path = f"/api/v1/namespaces/{quote(namespace)}"
        claim = self._object(path, "persistentvolumeclaims", name) or {}
        persistent_volume = text_field(subobject(claim, "spec"), "volumeName")
        if not persistent_volume:
            return
        spec = self._volume_spec(persistent_volume)
        names = unique_volume_names(spec, persistent_volume)
        if not names:
            return

        # A volume can have an in-tree name and one of CSI: that of the request counts.
        pairs = itertools.product(names, volumes)
        same = (
            volume for own_name, volume in pairs if detached_volume.is_same_volume(own_name, volume)
        )
        volume = next(same, names[0])
        attachments[volume] = replace(
            attachments.get(volume) or Attachment(volume),
            claim=f"{namespace}/{name}",
            shared=_is_shared(spec),
            persistent_volume=persistent_volume,
        )

    def _attachment(self, volume: str) -> Attachment:
        """Return what the VolumeAttachment of a volume says, and its PersistentVolume."""
        csi = _CSI.fullmatch(volume)
        if csi is None:
            return Attachment(volume)
        driver, handle = csi.groups()
        # The controller derives the name, so the object can be requested without a list.
        digest = sha256(f"{handle}{driver}{self.node}".encode()).hexdigest()
        described = self._object(_STORAGE, "volumeattachments", f"csi-{digest}")
        if described is None:
            return Attachment(volume)

        status = subobject(described, "status")
        deleting = bool(subobject(described, "metadata").get("deletionTimestamp"))
        attached = status.get("attached") is True and not deleting
        errors: Object = {} if attached else status

        source = subobject(subobject(described, "spec"), "source")
        persistent_volume = text_field(source, "persistentVolumeName")
        spec = self._volume_spec(persistent_volume)
        reference = spec.get("claimRef")

        return Attachment(
            volume,
            attached=attached,
            failed=bool(errors.get("attachError")),
            claim=f"{reference['namespace']}/{reference['name']}" if reference else None,
            exists=bool(described),
            attach_error=_message(errors.get("attachError")),
            detach_error=_message(errors.get("detachError")),
            shared=_is_shared(spec),
            persistent_volume=persistent_volume,
            deleting=deleting,
        )

    def _volume_spec(self, name: str) -> Object:
        """Return the spec of a PersistentVolume; empty: it does not exist, or is not known."""
        return subobject(self._object("/api/v1", "persistentvolumes", name) or {}, "spec")

    def _events(self, pod: Pod) -> list[Object]:
        """Return the pod's Events about attaching and mounting."""
        events = self._request("list events", *pod_events(pod))
        if events is None:
            self._events_read = False
            return []

        items = events.get("items")
        if items is not None and not isinstance(items, list):
            raise TypeError(f"items: {type(items).__name__}")
        return [item for item in items or () if item.get("reason") in VOLUME_REASONS]

    def _object(self, path: str, resource: str, name: str) -> Object | None:
        """Return an object by its name, as `_request`; none has an invalid name."""
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
            tree = json.loads(self.get(path, query))
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


def _last_events(events: list[tuple[Pod, Object]]) -> tuple[VolumeEvent, ...]:
    """Return the last Event of each pod, kind and volume that says why one is not attached."""
    kept = {}
    for pod, event in sorted(events, key=lambda pair: text_field(pair[1], "lastTimestamp")):
        text = text_field(event, "message")
        entry = catalog.find(text)
        key = entry.key if entry and entry.key in ENTRIES else ""
        if not key and event.get("reason") == _FAILED_ATTACH:
            key = ATTACH_FAILED
        if not key:
            continue

        volume = _VOLUME.search(text)
        name = escape(volume[1]) if volume else ""
        kept[pod.uid, key, name] = VolumeEvent(pod.uid, key, escape(truncate(text)), name)
    return tuple(kept.values())


def _message(error: Any) -> str:
    """Return the words of a VolumeError; empty: there is none."""
    if not error:
        return ""
    message = error.get("message") or "an error without a message"
    return escape(truncate(message))


def _is_shared(spec: Object) -> bool | None:
    """Return whether a PersistentVolume may be attached to several nodes; None: unknown."""
    modes = spec.get("accessModes")
    # As the controller decides it (util.IsMultiAttachAllowed): without modes it does not check.
    return not _EXCLUSIVE.issuperset(modes) if modes else None
