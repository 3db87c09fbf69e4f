"""Recordings: what is damaged says where, and what an older version wrote is read.

That everything written is read back is a law of all recordings (`tests/checks/test_laws.py`, `test_anonymize.py`).
"""

import json
from dataclasses import replace
from typing import Any

import pytest

from agent.cli.anonymize import anonymous
from agent.model.devices import TransitionKind
from agent.model.documents import Damaged, dumps, loads
from agent.model.snapshot import NotRequested, Unavailable
from tests.builders import (
    device_plugins,
    node,
    recorded,
    refused_pod,
    reservation,
    scanned,
    transition,
)

NODE = node(
    reservation("10.244.1.9"),
    refused_pod("vms/vm-1"),
    device_plugins=device_plugins(transition(TransitionKind.LOST)),
)


def changed(*path: str | int, value: Any = None, lost: bool = False) -> str:
    """Return the recording with a value replaced, or without it."""
    tree = parent = json.loads(dumps(recorded(NODE)))
    for step in path[:-1]:
        parent = parent[step]
    parent[path[-1]] = value
    if lost:
        del parent[path[-1]]
    return json.dumps(tree)


FIRST = ("snapshots", 0)
HISTORY = (*FIRST, "device_plugins", "known", "history", 0)
FILE = (*FIRST, "reservations", 0, "reading", "known", 2)
RANGE = (*FIRST, "cni_results", "known", 0, "ranges", 0, 0)


def test_a_damaged_recording_is_reported_with_the_position() -> None:
    for text, complaint in (
        ("", "not JSON: 'nodeleak record' writes recordings"),
        ("[" * 100_000, "not JSON"),
        *(
            (text, "its schema is not")
            for text in ("[]", "null", "{}", '{"schema": "nodeleak.scan/v1"}')
        ),
        (changed("grace", lost=True), "recording.grace: missing"),
        (
            changed(*FILE, "ip", lost=True),
            "recording.snapshots[0].reservations[0].reading[2].ip: missing",
        ),
        *(
            (changed(*path, value=value), complaint)
            for path, value, complaint in (
                (("snapshots",), [], "recording.snapshots: no snapshot"),
                (("snapshots",), {}, "recording.snapshots: expected a list, found {}"),
                (("snapshots", 0), 7, "recording.snapshots[0]: expected an object, found 7"),
                (("grace",), "5m", 'recording.grace: expected timedelta, found "5m"'),
                (("grace",), True, "recording.grace: expected timedelta, found true"),
                (("grace",), float("nan"), "recording.grace: expected timedelta"),
                *(
                    (path, number, f"{path[-1]}: {number!r} is out of range")
                    for path in (("grace",), (*FIRST, "uptime"), (*HISTORY, "uptime"))
                    for number in (1e300, 1e13, -1e13)
                ),
                *(
                    (path, at, f'{path[-1]}: "{at}" is out of range')
                    for path in ((*FIRST, "taken_at"), (*HISTORY, "at"))
                    for at in ("0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00")
                ),
                ((*FILE, "inode"), "7", 'reading[2].inode: expected int, found "7"'),
                ((*FILE, "inode"), True, "reading[2].inode: expected int, found true"),
                (
                    (*FIRST, "taken_at"),
                    "yesterday",
                    'taken_at: expected datetime, found "yesterday"',
                ),
                ((*FIRST, "taken_at"), "2026-03-26T20:00:00", "taken_at: expected datetime"),
                ((*FIRST, "taken_at"), "0001-01-01T00:00:00+14:00", "taken_at:"),
                ((*FIRST, "taken_at"), 5, "taken_at: expected datetime, found 5"),
                (
                    (*FILE, "ip"),
                    "::ffff:1.2.3.4",
                    '[2].ip: "::ffff:1.2.3.4" is not an address in canonical form',
                ),
                ((*FILE, "ip"), "fe80::1%eth0", "is not an address in canonical form"),
                (
                    (*FIRST, "pods"),
                    [],
                    "pods: expected known, unavailable or not_requested, found []",
                ),
                (
                    (*FIRST, "pods"),
                    "x" * 5000,
                    "pods: expected known, unavailable or not_requested",
                ),
                ((*FIRST, "pods"), {"known": 1}, "pods: expected a list, found 1"),
                ((*FIRST, "pods", "known", 0, "ips"), "10.0.0.1", "pods[0].ips: expected a list"),
                (
                    (*HISTORY, "what"),
                    "exploded",
                    'history[0].what: expected TransitionKind, found "exploded"',
                ),
                (
                    (*RANGE, "first"),
                    "banana",
                    "cni_results[0].ranges[0][0].first: 'banana' does not appear to be",
                ),
            )
        ),
    ):
        with pytest.raises(Damaged) as raised:
            loads(text)
        assert complaint in str(raised.value)
        assert len(str(raised.value)) < 200


def test_it_is_recorded_whether_a_source_is_missing() -> None:
    for missing in (False, True):
        unread = Unavailable("checkpoints", "no such directory", missing)
        read = loads(dumps(recorded(replace(node(), checkpoints=unread))))
        assert read.snapshots[0].checkpoints == unread
        (hidden,) = loads(dumps(anonymous(read))).snapshots
        assert isinstance(hidden.checkpoints, Unavailable)
        assert hidden.checkpoints.missing is missing


def test_a_recording_of_an_older_version_is_read_and_says_what_it_lacks() -> None:
    tree = json.loads(dumps(recorded(NODE)))
    (snapshot,) = tree["snapshots"]
    sources = ("device_plugins", "watches", "registration", "autoscaler", "mounts", "attachments")
    for field in (*sources, "api_skew", "server_version"):
        del snapshot[field]
    for pod in snapshot["pods"]["known"]:
        for field in ("rejection", "wants", "controller", "scheduled", "claims", "volumes"):
            del pod[field]
    for field in (
        "uid",
        "created",
        "provider_id",
        "taints",
        "ready",
        "controller_attach",
        "volumes_in_use",
    ):
        del snapshot["node"]["known"][field]
    (old,) = loads(json.dumps(tree)).snapshots
    assert {getattr(old, source) for source in sources} == {
        NotRequested(source, "the snapshot was taken by a version that did not read it")
        for source in sources
    }
    assert [pod.rejection for pod in old.pods.known()] == [None] * 4
    assert old.server_version == ""
    assert scanned(old).complete
    # What a later version wrote besides is ignored.
    assert loads(changed("weather", value="fine")) == recorded(NODE)


def test_what_is_none_is_recorded_as_the_empty_text_that_it_was() -> None:
    tree = json.loads(dumps(recorded(NODE)))
    registration = tree["snapshots"][0]["registration"]["known"]
    assert (registration["why"], registration["last"]["earlier_id"]) == ("", "")
    assert tree["snapshots"][0]["device_plugins"]["known"]["trouble"] == ""
    assert loads(json.dumps(tree)) == recorded(NODE)
