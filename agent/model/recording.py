"""Snapshots of a node as versioned JSON, and back. Recordings outlive code: see `codec.py` for what that takes."""

import json
from dataclasses import dataclass
from datetime import timedelta

from agent.model.codec import Damaged, build, parse_document, plain
from agent.model.snapshot import Snapshot

SCHEMA = "nodeleak.recording/v1"


@dataclass(frozen=True, slots=True)
class Recording:
    """One or more snapshots, and the settings with which they were assessed."""

    grace: timedelta
    confirm_after: timedelta
    snapshots: tuple[Snapshot, ...]


def dumps(recording: Recording) -> str:
    return json.dumps({"schema": SCHEMA, **plain(recording)}, indent=1)


def loads(text: str) -> Recording:
    """Read a recording; raises Damaged with the path and the value that is wrong."""
    try:
        tree = parse_document(text, SCHEMA)
    except Damaged as damaged:
        raise Damaged(f"{damaged}: 'nodeleak record' writes recordings") from damaged
    recording = build(Recording, tree, "recording")
    if not recording.snapshots:
        raise Damaged("recording.snapshots: no snapshot")
    return recording
