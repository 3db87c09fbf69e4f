"""The history of the device plugins as text, and back: what files on the node cannot tell once it is over. Pure.

It is a memory, and not a record: damaged, it begins anew and says so.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from agent.model.devices import DeviceTransition, TransitionKind

SCHEMA: Final = "nodeleak.device-plugins/v1"
FILE: Final = "device-plugins.json"
"""Its name in the agent's state directory."""
MOST: Final = 500
"""How many milestones are kept; older ones are dropped. A restart of the kubelet makes a few for each plugin."""


@dataclass(frozen=True, slots=True)
class StoredHistory:
    transitions: tuple[DeviceTransition, ...] = ()
    """Oldest first."""
    trouble: str = ""
    """Why nothing of it could be read; empty where nothing is wrong."""


def dumps(transitions: Iterable[DeviceTransition]) -> str:
    """Write them, the newest `MOST` at most."""
    kept = tuple(transitions)[-MOST:]
    return json.dumps({"schema": SCHEMA, "transitions": [_plain(one) for one in kept]}, separators=(",", ":"))


def loads(text: str | bytes) -> StoredHistory:
    """Read them. Never raises, whatever the text."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError):
        return StoredHistory(trouble="it is not JSON")
    if not isinstance(tree, dict) or tree.get("schema") != SCHEMA:
        return StoredHistory(trouble=f"its schema is not {SCHEMA!r}")
    listed = tree.get("transitions")
    if not isinstance(listed, list):
        return StoredHistory(trouble="it has no list of milestones")
    found: list[DeviceTransition] = []
    for number, one in enumerate(listed, 1):
        try:
            found.append(_milestone(one))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            return StoredHistory(trouble=f"its milestone {number} cannot be read: {type(error).__name__}: {error}")
    return StoredHistory(tuple(found))


def _plain(one: DeviceTransition) -> dict[str, Any]:
    return {
        "what": one.what.value,
        "at": one.at.isoformat(),
        "uptime": one.uptime.total_seconds(),
        "boot_id": one.boot_id,
        "resource": one.resource,
        "socket": one.socket,
        "exact": one.exact,
    }


_LONGEST_UPTIME, _FIRST_YEAR, _LAST_YEAR = 10**10, 1970, 9000


def _milestone(tree: Mapping[str, Any]) -> DeviceTransition:
    at = datetime.fromisoformat(tree["at"])
    if at.tzinfo is None:
        raise ValueError(f"{tree['at']!r} has no time zone")
    seconds = _number(tree["uptime"])
    if not 0 <= seconds < _LONGEST_UPTIME or not _FIRST_YEAR <= at.year <= _LAST_YEAR:
        raise ValueError(f"{tree['at']!r}, {seconds} s after boot: no node's clocks say so")
    return DeviceTransition(
        what=TransitionKind(tree["what"]),
        at=at.astimezone(UTC),
        uptime=timedelta(seconds=seconds),
        boot_id=_text(tree["boot_id"]),
        resource=_text(tree["resource"]),
        socket=_text(tree["socket"]),
        exact=_boolean(tree["exact"]),
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is no text")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r:.40} is no number")
    return value


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r:.40} is neither true nor false")
    return value
