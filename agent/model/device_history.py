"""The device history as text and back: what the node's files no longer show. Pure.

A damaged history is not repaired: it starts anew, and the reason is reported.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final

from agent.model.codec import Damaged, build, plain
from agent.model.devices import DeviceTransition
from agent.model.nesting import parse_json

HISTORY_SCHEMA: Final = "nodeleak.device-plugins/v1"
HISTORY_FILE: Final = "device-plugins.json"
"""Its name in the agent's state directory."""


@dataclass(frozen=True, slots=True)
class StoredHistory:
    transitions: tuple[DeviceTransition, ...] = ()
    """Oldest first."""
    trouble: str = ""
    """Why it could not be read; empty: it could."""


def dump_history(transitions: Iterable[DeviceTransition]) -> str:
    return json.dumps({"schema": HISTORY_SCHEMA, "transitions": plain(tuple(transitions))}, separators=(",", ":"))


def load_history(text: str | bytes) -> StoredHistory:
    """Read a history. Never raises, whatever the text."""
    try:
        tree = parse_json(text)
    except ValueError:
        return StoredHistory(trouble="not JSON")
    if not isinstance(tree, dict) or tree.get("schema") != HISTORY_SCHEMA:
        return StoredHistory(trouble=f"its schema is not {HISTORY_SCHEMA!r}")
    listed = tree.get("transitions")
    if not isinstance(listed, list):
        return StoredHistory(trouble="it has no list of transitions")
    try:
        return StoredHistory(tuple(_transition(one, f"transitions[{place}]") for place, one in enumerate(listed)))
    except Damaged as damaged:
        return StoredHistory(trouble=str(damaged))


_LONGEST_UPTIME, _YEARS = 10**10, range(1970, 9001)
"""Seconds, and years: no node's clocks show more, and nearer to the end of the calendar no span can be added."""


def _transition(tree: Any, place: str) -> DeviceTransition:
    if isinstance(tree, dict):
        for field in fields(DeviceTransition):
            if field.name not in tree:
                raise Damaged(f"{place}.{field.name}: missing")
    transition = build(DeviceTransition, tree, place)
    if not 0 <= transition.uptime.total_seconds() < _LONGEST_UPTIME or transition.at.year not in _YEARS:
        raise Damaged(f"{place}: {transition.at} is not a time that a node's clocks show")
    return transition
