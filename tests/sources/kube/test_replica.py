"""Version checks, without a server: which objects may come back."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

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


def test_events_update_objects_and_increase_the_version() -> None:
    replica = at(10, thing("a", 3, "a"))
    replica.apply(event("ADDED", thing("b", 11, "b")))
    replica.apply(event("MODIFIED", thing("a", 12, "A")))
    assert (replica.items(), replica.version) == (("A", "b"), 12)
    replica.apply(event("DELETED", thing("a", 13)))
    assert (replica.items(), replica.version) == (("b",), 13)


def test_a_bookmark_changes_only_the_version() -> None:
    replica = at(10, thing("a", 3, "a"))
    replica.apply(event("BOOKMARK", {"metadata": {"resourceVersion": "50"}}))
    assert (replica.items(), replica.version, replica.regressions) == (("a",), 50, 0)


def test_a_deletion_with_an_old_version_removes_and_does_not_lower_the_version() -> None:
    # API servers before 1.9.3: the version of the object's last update.
    replica = at(10, thing("a", 3, "a"), thing("b", 9, "b"))
    replica.apply(event("DELETED", thing("a", 3)))
    assert (replica.items(), replica.version, replica.regressions) == (("b",), 10, 1)


@pytest.mark.parametrize("kind", ["ADDED", "MODIFIED"])
@pytest.mark.parametrize("version", [3, 10])
def test_a_replayed_event_resurrects_nothing(kind: str, version: int) -> None:
    replica = at(10, thing("a", 3, "a"))
    replica.apply(event("DELETED", thing("a", 3)))
    replica.apply(event(kind, thing("a", version, "a back from the dead")))
    assert (replica.items(), replica.version) == ((), 10)


def test_an_older_list_from_a_cache_is_rejected_and_counted() -> None:
    replica = at(10, thing("a", 3, "a"))
    with pytest.raises(Regressed, match="it listed version 9 after 10"):
        replica.replace(9, [], consistent=False)
    assert (replica.items(), replica.version, replica.regressions) == (("a",), 10, 1)


def test_an_older_list_from_etcd_is_accepted() -> None:
    replica = at(10, thing("a", 3, "a"))
    replica.replace(9, [thing("b", 2, "b")], consistent=True)
    assert (replica.items(), replica.version, replica.regressions) == (("b",), 9, 1)


@pytest.mark.parametrize(
    ("status", "expired"),
    [
        ({"code": 410, "reason": "Expired", "message": "too old resource version"}, True),
        ({"code": 410, "reason": "Gone", "message": "gone"}, True),
        ({"code": 504, "reason": "Timeout", "message": "Too large resource version"}, True),
        ({"code": 500, "reason": "InternalError", "message": "etcd is away"}, False),
        ({"code": 401, "message": "Unauthorized"}, False),
        ({}, False),
    ],
)
def test_a_watch_error_says_whether_to_list_again(status: dict[str, Any], expired: bool) -> None:
    with pytest.raises(SourceError, match=status.get("message", "API server")) as raised:
        at(10).apply(event("ERROR", status))
    assert isinstance(raised.value, Expired) is expired


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\n", b"null", b"[]", b"7", b"{}", b'{"type": "ADDED"}', b"<html>", b"\xff", b"[" * 99999,
        b'{"type": "ADDED", "object": null}', b'{"type": "ADDED", "object": []}', b'{"type": "ERROR", "object": "x"}',
        b'{"type": "ERROR", "object": null}', b'{"type": "ADDED", "object": {"metadata": null}}',
        event("ADDED", {"metadata": {"uid": "a"}}), event("ADDED", {"metadata": {"uid": "a", "resourceVersion": "x"}}),
        event("ADDED", {"metadata": {"uid": "a", "resourceVersion": float("inf")}}),
        event("ADDED", {"metadata": {"resourceVersion": "11"}, "says": ""}), event("BOOKMARK", {"kind": "Pod"}),
        event("DELETED", {"metadata": {"resourceVersion": "11"}}),
        event("ADDED", {"metadata": {"uid": "a", "resourceVersion": "11"}}),
    ],
)  # fmt: skip
def test_an_invalid_event_is_reported_and_changes_nothing(line: bytes) -> None:
    replica = at(10, thing("a", 3, "a"))
    with pytest.raises(SourceError, match=r"^API server: "):
        replica.apply(line)
    assert (replica.items(), replica.version) == (("a",), 10)


def test_an_event_of_an_unknown_type_adds_nothing() -> None:
    replica = at(10, thing("a", 3, "a"))
    replica.apply(event("PAUSED", thing("z", 11, "z")))
    assert replica.items() == ("a",)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["ERROR", "ADDED", "DELETED", "11"]),
    lambda one: (
        st.lists(one, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "object", "metadata", "uid", "resourceVersion", "code"]), one)
    ),
)


@given(line=st.binary(max_size=40) | json_values.map(lambda tree: json.dumps(tree).encode()))
def test_any_line_is_applied_or_an_error(line: bytes) -> None:
    replica = at(10)
    try:
        replica.apply(line)
    except SourceError:
        assert replica.items() == ()
    assert replica.version >= 10


class Watched(RuleBasedStateMachine):
    """An API server that replays, and deletes with old versions, as those before 1.9.3 did."""

    living = Bundle("living")
    dead = Bundle("dead")

    @initialize()
    def start(self) -> None:
        self.replica = at(100)
        self.now, self.named = 100, 0
        self.deleted: set[str] = set()
        self.highest = 100

    @rule(target=living)
    def appear(self) -> tuple[str, int]:
        self.now, self.named = self.now + 1, self.named + 1
        uid = f"u{self.named}"
        self.replica.apply(event("ADDED", thing(uid, self.now, uid)))
        return uid, self.now

    @rule(target=dead, one=consumes(living), old=st.booleans())
    def vanish(self, one: tuple[str, int], old: bool) -> tuple[str, int]:
        uid, version = one
        self.now += 1
        self.deleted.add(uid)
        self.replica.apply(event("DELETED", thing(uid, version if old else self.now, uid)))
        return one

    @rule(one=living | dead, kind=st.sampled_from(["ADDED", "MODIFIED"]))
    def replay(self, one: tuple[str, int], kind: str) -> None:
        self.replica.apply(event(kind, thing(one[0], one[1], one[0])))

    @rule()
    def bookmark(self) -> None:
        self.replica.apply(event("BOOKMARK", {"metadata": {"resourceVersion": str(self.now)}}))

    @rule(back=st.integers(0, 5))
    def list_from_a_cache(self, back: int) -> None:
        listed = [thing(f"u{n}", 1, f"u{n}") for n in range(1, self.named + 1) if f"u{n}" not in self.deleted]
        try:
            self.replica.replace(self.now - back, listed, consistent=False)
        except Regressed:
            assert self.now - back < self.highest

    @invariant()
    def the_version_never_falls(self) -> None:
        assert self.replica.version >= self.highest
        self.highest = self.replica.version

    @invariant()
    def the_dead_stay_dead(self) -> None:
        assert not self.deleted & set(self.replica.items())


TestWatched = Watched.TestCase
