"""Version checks, without a server: which objects may come back."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from agent.sources.kube.replica import Expired, Regressed, Replica
from agent.sources.source_error import SourceError


def thing(uid: str, version: int, says: str = "") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}, "says": says}


def event(kind: str, item: object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode()


def says(item: Mapping[str, Any]) -> str:
    return str(item["says"])


def at(version: int, *items: dict[str, Any]) -> Replica[str]:
    """Make a replica that has listed."""
    replica = Replica(says)
    replica.replace(version, items, consistent=False)
    return replica


def test_a_list_is_applied_completely() -> None:
    replica = at(10, thing("a", 3, "old a"), thing("b", 4, "b"))
    replica.replace(12, [thing("a", 11, "new a")], consistent=False)
    assert (replica.items(), replica.version) == (("new a",), 12)


def test_an_interrupted_list_changes_nothing() -> None:
    def breaking() -> Any:
        yield thing("c", 11, "c")
        raise SourceError("it broke off")

    replica = at(10, thing("a", 3, "a"))
    with pytest.raises(SourceError, match="it broke off"):
        replica.replace(12, breaking(), consistent=False)
    assert (replica.items(), replica.version) == (("a",), 10)


def test_a_bookmark_changes_only_the_version() -> None:
    replica = at(10, thing("a", 3, "a"))
    replica.apply(event("BOOKMARK", {"metadata": {"resourceVersion": "50"}}))
    assert (replica.items(), replica.version, replica.regressions) == (("a",), 50, 0)


def test_a_deletion_with_an_old_version_removes_and_does_not_lower_the_version() -> None:
    # API servers before 1.9.3: the version of the object's last update.
    replica = at(10, thing("a", 3, "a"), thing("b", 9, "b"))
    replica.apply(event("DELETED", thing("a", 3)))
    assert (replica.items(), replica.version, replica.regressions) == (("b",), 10, 1)


def test_an_older_list_from_a_cache_is_rejected_and_counted() -> None:
    replica = at(10, thing("a", 3, "a"))
    with pytest.raises(Regressed, match="it listed version 9 after 10"):
        replica.replace(9, [], consistent=False)
    assert (replica.items(), replica.version, replica.regressions) == (("a",), 10, 1)


def test_a_watch_error_says_whether_to_list_again() -> None:
    for status, expired in (
        ({"code": 410, "reason": "Expired", "message": "too old resource version"}, True),
        ({"code": 410, "reason": "Gone", "message": "gone"}, True),
        ({"code": 504, "reason": "Timeout", "message": "Too large resource version"}, True),
        ({"code": 500, "reason": "InternalError", "message": "etcd is away"}, False),
        ({"code": 401, "message": "Unauthorized"}, False),
        ({}, False),
    ):
        with pytest.raises(SourceError, match=str(status.get("message", "API server"))) as raised:
            at(10).apply(event("ERROR", status))
        assert isinstance(raised.value, Expired) is expired


def test_an_invalid_event_is_reported_and_changes_nothing() -> None:
    for line in (
        b"", b"\n", b"null", b"[]", b"7", b"{}", b'{"type": "ADDED"}', b"<html>", b"\xff", b"[" * 99999,
        b'{"type": "ADDED", "object": null}', b'{"type": "ADDED", "object": []}', b'{"type": "ERROR", "object": "x"}',
        b'{"type": "ERROR", "object": null}', b'{"type": "ADDED", "object": {"metadata": null}}',
        event("ADDED", {"metadata": {"uid": "a"}}), event("ADDED", {"metadata": {"uid": "a", "resourceVersion": "x"}}),
        event("ADDED", {"metadata": {"uid": "a", "resourceVersion": float("inf")}}),
        event("ADDED", {"metadata": {"resourceVersion": "11"}, "says": ""}), event("BOOKMARK", {"kind": "Pod"}),
        event("DELETED", {"metadata": {"resourceVersion": "11"}}),
        event("ADDED", {"metadata": {"uid": "a", "resourceVersion": "11"}}),
    ):  # fmt: skip
        replica = at(10, thing("a", 3, "a"))
        with pytest.raises(SourceError, match=r"^API server: "):
            replica.apply(line)
        assert (replica.items(), replica.version) == (("a",), 10)


def test_an_event_of_an_unknown_type_adds_nothing() -> None:
    replica = at(10, thing("a", 3, "a"))
    replica.apply(event("PAUSED", thing("z", 11, "z")))
    assert replica.items() == ("a",)
