"""The files in the agent's state directory as text, and back: what the node itself no longer shows. Pure.

A damaged file is not repaired: what it had starts anew, and the reason is reported.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from agent.model.codec import Damaged, build, parse_document, plain
from agent.model.devices import DeviceTransition
from agent.model.registration import LastSeen

HISTORY_FILE: Final = "device-plugins.json"
LAST_SEEN_FILE: Final = "node.json"
HISTORY_SCHEMA: Final = "nodeleak.device-plugins/v1"
_LAST_SEEN_SCHEMA: Final = "nodeleak.node/v1"
_LONGEST_UPTIME, _YEARS = 10**10, range(1970, 9001)
"""Seconds, and years: no node's clocks show more, and nearer to the end of the calendar no span can be added."""


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
        listed = parse_document(text, HISTORY_SCHEMA).get("transitions")
        if not isinstance(listed, list):
            raise Damaged("it has no list of transitions")  # noqa: TRY301 (it is reported as any other damage)
        return StoredHistory(tuple(_transition(tree, f"transitions[{index}]") for index, tree in enumerate(listed)))
    except Damaged as damaged:
        return StoredHistory(trouble=str(damaged))


def _transition(tree: Any, path: str) -> DeviceTransition:
    transition = build(DeviceTransition, tree, path)
    if not 0 <= transition.uptime.total_seconds() < _LONGEST_UPTIME or transition.at.year not in _YEARS:
        raise Damaged(f"{path}: {transition.at} is not a time that a node's clocks show")
    return transition


def dump_last_seen(last: LastSeen) -> str:
    return json.dumps({"schema": _LAST_SEEN_SCHEMA, **plain(last)})


def load_last_seen(text: str | bytes) -> LastSeen:
    """Read the Node as it was last seen; raises Damaged."""
    return build(LastSeen, parse_document(text, _LAST_SEEN_SCHEMA), "node")
