"""Recordings and the files of the state directory as versioned JSON, and back. Pure.

They outlive code: see `codec.py` for what that takes. A damaged file is not repaired: what it had starts anew, and the
reason is reported.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from agent.model.codec import Damaged, build, parse_document, plain
from agent.model.devices import DeviceTransition
from agent.model.registration import LastSeen
from agent.model.snapshot import Snapshot

HISTORY_FILE: Final = "device-plugins.json"
LAST_SEEN_FILE: Final = "node.json"
HISTORY_SCHEMA: Final = "nodeleak.device-plugins/v1"
_LAST_SEEN_SCHEMA: Final = "nodeleak.node/v1"
_RECORDING_SCHEMA: Final = "nodeleak.recording/v1"


@dataclass(frozen=True, slots=True)
class Recording:
    """One or more snapshots, and the settings with which they were assessed."""

    grace: timedelta
    confirm_after: timedelta
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class StoredHistory:
    transitions: tuple[DeviceTransition, ...] = ()
    """Oldest first."""
    trouble: str = ""
    """Why it could not be read; empty: it could."""


def dumps(recording: Recording) -> str:
    return json.dumps({"schema": _RECORDING_SCHEMA, **plain(recording)}, indent=1)


def loads(text: str) -> Recording:
    """Read a recording; raises Damaged with the path and the value that is wrong."""
    try:
        tree = parse_document(text, _RECORDING_SCHEMA)
    except Damaged as damaged:
        raise Damaged(f"{damaged}: 'nodeleak record' writes recordings") from damaged
    recording = build(Recording, tree, "recording")
    if not recording.snapshots:
        raise Damaged("recording.snapshots: no snapshot")
    return recording


def dump_history(transitions: Iterable[DeviceTransition]) -> str:
    return json.dumps({"schema": HISTORY_SCHEMA, "transitions": plain(tuple(transitions))}, separators=(",", ":"))


def load_history(text: str | bytes) -> StoredHistory:
    """Read a history. Never raises, whatever the text."""
    try:
        listed = parse_document(text, HISTORY_SCHEMA).get("transitions")
        return build(StoredHistory, {"transitions": listed}, "history")
    except Damaged as damaged:
        return StoredHistory(trouble=str(damaged))


def dump_last_seen(last: LastSeen) -> str:
    return json.dumps({"schema": _LAST_SEEN_SCHEMA, **plain(last)})


def load_last_seen(text: str | bytes) -> LastSeen:
    """Read the Node as it was last seen; raises Damaged."""
    return build(LastSeen, parse_document(text, _LAST_SEEN_SCHEMA), "node")
