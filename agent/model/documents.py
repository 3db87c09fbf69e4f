"""Recordings and the files of the state directory as versioned JSON, and back. Pure.

They outlive code, so the format is simple: every field under its own name, a reading as `{"known": …}`,
`{"unavailable": …}` or `{"not_requested": …}`, times in ISO 8601, durations in seconds. An unknown field is ignored; a
missing field is an error that names its place. A damaged file is not repaired: what it had starts anew, and the reason
is reported.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from agent.model.devices import DeviceTransition
from agent.model.registration import LastSeen
from agent.model.snapshot import (
    EARLIEST,
    LATEST,
    LONGEST,
    Known,
    NotRequested,
    Reading,
    Snapshot,
    Unavailable,
)

D = TypeVar("D")
T = TypeVar("T", datetime, timedelta)

_type_hints: Final[Callable[[Any], dict[str, Any]]] = cache(get_type_hints)
_GREATEST: Final = 2**63 * 10**9
"""Of integers: a file's time in nanoseconds. The kernel has none that is greater."""
MAX_LEVELS: Final = 20  # levels of a document of nodeleak's own; none has more than ten

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
    transitions: tuple[DeviceTransition, ...] = ()  # oldest first
    trouble: str = ""  # why it, or an entry of it, could not be read; empty: all of it could


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
    return json.dumps(
        {"schema": HISTORY_SCHEMA, "transitions": plain(tuple(transitions))}, separators=(",", ":")
    )


def load_history(text: str | bytes) -> StoredHistory:
    """Read a history, without the entries that are damaged. Never raises, whatever the text."""
    try:
        listed = parse_document(text, HISTORY_SCHEMA).get("transitions")
    except Damaged as damaged:
        return StoredHistory(trouble=str(damaged))
    if not isinstance(listed, list):
        return StoredHistory(
            trouble=f"history.transitions: expected a list, found {_short(listed)}"
        )
    transitions: list[DeviceTransition] = []
    damages: list[str] = []
    for index, entry in enumerate(listed):
        try:
            transitions.append(build(DeviceTransition, entry, f"history.transitions[{index}]"))
        except Damaged as damaged:
            damages.append(str(damaged))
    others = f" (ignored, like {len(damages) - 1} others)" if damages[1:] else " (ignored)"
    return StoredHistory(tuple(transitions), f"{damages[0]}{others}" if damages else "")


def dump_last_seen(last: LastSeen) -> str:
    return json.dumps({"schema": _LAST_SEEN_SCHEMA, **plain(last)})


def load_last_seen(text: str | bytes) -> LastSeen:
    """Read the Node as it was last seen; raises Damaged."""
    return build(LastSeen, parse_document(text, _LAST_SEEN_SCHEMA), "node")


class Damaged(Exception):
    """The text is not what this version writes; the message names the place and the value."""


def parse_document(text: str | bytes, schema: str) -> dict[str, Any]:
    """Parse a JSON document of this schema; raises Damaged."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged("not JSON") from error
    if not isinstance(tree, dict) or tree.get("schema") != schema:
        raise Damaged(f"its schema is not {schema!r}")
    if is_deeper(tree, MAX_LEVELS):
        raise Damaged("nested too deeply")
    return tree


def is_deeper(tree: Any, levels: int) -> bool:
    """Return whether a document is nested more deeply: Python parses a thousand levels, and cannot write them all."""
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return levels == 0 or any(is_deeper(part, levels - 1) for part in parts)


def plain(value: Any) -> Any:
    """Return a value of the model as JSON has it."""
    match value:
        case Known(known):
            return {"known": plain(known)}
        case Unavailable(source, why, missing):
            return {"unavailable": {"source": source, "why": why, "missing": missing}}
        case NotRequested(source, why):
            return {"not_requested": {"source": source, "why": why}}
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case IPv4Address() | IPv6Address():
            return str(value)
        case tuple():
            return [*map(plain, value)]
        case _ if is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in _recorded(value)}
        case _:
            return value


def _recorded(value: Any) -> Iterator[Field[Any]]:
    """Yield the fields of a dataclass, or of its class, that are recorded: those that are compared."""
    return (field for field in fields(value) if field.compare)


def build(kind: type[D], tree: Any, path: str) -> D:
    """Build a dataclass of the model from its plain form; raises Damaged with the path that is wrong."""
    if not isinstance(tree, Mapping):
        raise Damaged(f"{path}: expected an object, found {_short(tree)}")
    hints, given = _type_hints(kind), dict[str, Any]()
    for field in _recorded(kind):
        if field.name in tree:
            given[field.name] = _value(hints[field.name], tree[field.name], f"{path}.{field.name}")
        elif field.default is MISSING:  # with a default: a recording of a version that lacked it
            raise Damaged(f"{path}.{field.name}: missing")
    blocked = (
        "name" if given.get("blocks") is True else "ip"
    )  # of an unrecognized entry that takes an address
    if blocked in given:
        _check_address(given[blocked], f"{path}.{blocked}")
    return kind(**given)


def _check_address(text: str, path: str) -> None:
    address = _address(text, path)
    if str(address) != text or (
        isinstance(address, IPv6Address) and (address.scope_id or address.ipv4_mapped)
    ):
        raise Damaged(f"{path}: {_short(text)} is not an address in canonical form")


def _address(text: Any, path: str) -> IPv4Address | IPv6Address:
    try:
        return ip_address(text if isinstance(text, str) else "")
    except ValueError as error:
        raise Damaged(f"{path}: {error}") from error


def _value(kind: Any, tree: Any, path: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if NoneType in arguments:
        return None if tree is None else _value(arguments[0], tree, path)
    if IPv4Address in arguments:
        return _address(tree, path)
    if origin in {Union, UnionType}:
        return _reading(get_args(arguments[0])[0], tree, path)
    if origin is tuple:
        if not isinstance(tree, list):
            raise Damaged(f"{path}: expected a list, found {_short(tree)}")
        return tuple(
            _value(arguments[0], item, f"{path}[{index}]") for index, item in enumerate(tree)
        )
    if is_dataclass(kind):
        return build(cast("type[Any]", kind), tree, path)
    try:
        return _scalar(kind, tree)
    except OverflowError as error:
        raise Damaged(f"{path}: {_short(tree)} is out of range") from error
    except (TypeError, ValueError) as error:
        raise Damaged(f"{path}: expected {kind.__name__}, found {_short(tree)}") from error


def _scalar(kind: Any, tree: Any) -> Any:
    """Read a value without parts; raises TypeError, ValueError or OverflowError."""
    if kind is datetime and (moment := datetime.fromisoformat(tree)).tzinfo is not None:
        return _bounded(moment.astimezone(UTC), EARLIEST, LATEST)
    if kind is timedelta and not isinstance(tree, bool):
        return _bounded(timedelta(seconds=tree), -LONGEST, LONGEST)
    if issubclass(kind, StrEnum):
        return kind(tree)
    if isinstance(tree, kind) and not (
        kind is int and (isinstance(tree, bool) or abs(tree) > _GREATEST)
    ):
        return tree
    raise TypeError(kind.__name__)


def _bounded(value: T, first: T, last: T) -> T:
    """Return a time or a duration; raises OverflowError for one that no snapshot can have."""
    if not first <= value <= last:
        raise OverflowError
    return value


def _reading(kind: Any, tree: Any, path: str) -> Reading[Any]:
    match tree:
        case {"known": value}:
            return Known(_value(kind, value, path))
        case {"unavailable": {"source": str(source), "why": str(why), **more}}:
            return Unavailable(source, why, more.get("missing") is True)
        case {"not_requested": {"source": str(source), "why": str(why)}}:
            return NotRequested(source, why)
        case _:
            raise Damaged(
                f"{path}: expected known, unavailable or not_requested, found {_short(tree)}"
            )


def _short(tree: Any) -> str:
    text = json.dumps(tree)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004 (enough to recognize it in a message)
