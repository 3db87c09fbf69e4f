"""A fake of API servers that are too old to run here: lists and watches over an etcd in memory, byte for byte.

`Server.old`: as before 1.9.3, DELETED events have the version of the object's last update. What is not old is as a
server of today. It follows that server's watch cache: a list of version 0 is out of it, and it may lag behind etcd.
A watch from a version that it does not have yet is silent until it has it (as 1.20.2 does); such a list is refused.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.wire import CHUNKED, LAST_CHUNK, Answer, Request, chunk, http


@dataclass(frozen=True)
class Change:
    revision: int
    kind: str
    uid: str
    updated: int  # The revision of the object's last update


@dataclass
class Etcd:
    revision: int = 100
    changes: list[Change] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)  # Of every uid that ever was

    def create(self, name: str = "") -> str:
        uid = f"uid-{len(self.names)}"
        self.names[uid] = name or uid
        self._change("ADDED", uid, self.revision + 1)
        return uid

    def update(self, uid: str) -> None:
        self._change("MODIFIED", uid, self.revision + 1)

    def delete(self, uid: str) -> None:
        self._change("DELETED", uid, self.at(self.revision)[uid])

    def elsewhere(self) -> None:
        """Change an object that is not watched here: all objects share one revision."""
        self.revision += 1

    def restore(self, revision: int) -> None:
        """Go back to a backup: what was written since has never been."""
        self.changes = [one for one in self.changes if one.revision <= revision]
        self.revision = revision

    def at(self, revision: int) -> dict[str, int]:
        """Return the version of each object as it was then."""
        objects: dict[str, int] = {}
        for one in self.changes:
            if one.revision > revision:
                break
            objects[one.uid] = one.updated
            if one.kind == "DELETED":
                del objects[one.uid]
        return objects

    def _change(self, kind: str, uid: str, updated: int) -> None:
        self.revision += 1
        self.changes.append(Change(self.revision, kind, uid, updated))


@dataclass
class Server:
    etcd: Etcd
    old: bool = False
    behind: int = 0  # How many revisions its cache has yet to hear of

    @property
    def position(self) -> int:
        return max(1, self.etcd.revision - self.behind)

    def list(self, version: str) -> tuple[int, bytes]:
        """Answer a list with its status: "" is read through to etcd, "0" is whatever there is."""
        position = self.position if version else self.etcd.revision
        if version and int(version) > position:
            return 504, json.dumps(
                {"kind": "Status", "code": 504, "message": "Too large resource version"}
            ).encode()
        return 200, listed(
            "PodList", position, *(self._pod(uid, at) for uid, at in self.etcd.at(position).items())
        )

    def events(self, since: int) -> Iterator[bytes]:
        """Return what a watch shows of the changes up to now; from 0, all objects first, in no order."""
        if since == 0:
            since = self.position
            yield from (
                line("ADDED", self._pod(uid, at))
                for uid, at in sorted(self.etcd.at(since).items(), reverse=True)
            )
        for one in self.etcd.changes:
            if since < one.revision <= self.position:
                yield line(one.kind, self._pod(one.uid, one.updated if self.old else one.revision))

    def answer(self, request: Request) -> Answer:
        """Answer over HTTP: a list; or what a watch shows now, and its end in due time."""
        query = {
            name: values[0] for name, values in parse_qs(urlsplit(request.target).query).items()
        }
        version = query.get("resourceVersion", "")
        if request.path == "/version":
            return [http(json.dumps({"gitVersion": "v1.9.2" if self.old else "v1.20.2"}))]
        if request.path == "/api/v1/nodes":
            own = {"metadata": {"name": "worker-1", "uid": "node-1", "resourceVersion": "7"}}
            return [http(listed("NodeList", self.position if version else self.etcd.revision, own))]
        if not request.watches:
            status, body = self.list(version)
            return [http(body, "200 OK" if status == 200 else "504 Gateway Timeout")]
        return [CHUNKED, *map(chunk, self.events(int(version or 0))), LAST_CHUNK]

    def _pod(self, uid: str, version: int) -> dict[str, Any]:
        return pod(uid, version, self.etcd.names[uid])


def listed(kind: str, version: int, *items: dict[str, Any]) -> bytes:
    tree = {
        "kind": kind,
        "apiVersion": "v1",
        "metadata": {"resourceVersion": str(version)},
        "items": items,
    }
    return json.dumps(tree, separators=(",", ":")).encode()


def pod(uid: str, version: int, name: str = "") -> dict[str, Any]:
    metadata = {
        "name": name or uid,
        "namespace": "shop",
        "uid": uid,
        "resourceVersion": str(version),
    }
    return {"metadata": metadata, "spec": {"nodeName": "worker-1"}, "status": {"phase": "Running"}}


def line(kind: str, item: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": item}, separators=(",", ":")).encode() + b"\n"


def bookmark(version: int) -> bytes:
    return line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})
