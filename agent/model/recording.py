"""Snapshots of a node as versioned JSON, and back. Recordings outlive code: see `codec.py` for what that takes."""

import json
from dataclasses import dataclass
from datetime import timedelta

from agent.model.codec import Damaged, build, plain
from agent.model.nesting import parse_json
from agent.model.snapshot import Snapshot
from agent.model.text import truncate

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
    """Read a recording; raises Damaged with the place and the value that is wrong."""
    try:
        tree = parse_json(text)
    except ValueError as error:
        raise Damaged(f"not JSON ({error}): 'nodeleak record' writes recordings") from error
    if not isinstance(tree, dict) or "schema" not in tree:
        raise Damaged("no schema: 'nodeleak record' writes recordings")
    if tree["schema"] != SCHEMA:
        raise Damaged(f"schema {truncate(tree['schema'])}: this version of nodeleak reads {SCHEMA}")
    recording = build(Recording, tree, "recording")
    if not recording.snapshots:
        raise Damaged("recording.snapshots: no snapshot")
    return recording
