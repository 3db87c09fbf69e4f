"""Recordings and the files of the state directory as versioned JSON, and back. Pure.

The format outlives code, so it is simple:

- A dataclass is an object with every field under its own name, but for those whose metadata say
  `recorded: False`. When it is read, an unknown field is ignored. A missing one has its default,
  since an older version lacked it; without a default it is an error.
- A reading is `{"known": …}`, `{"unavailable": {…}}` or `{"not_requested": {…}}`.
- None is null, or what the metadata of its field say as `none`.
- A tuple is a list. A time is in ISO 8601, with an offset. A duration is in seconds.

A damaged file is not repaired: what it had starts anew, and the reason is reported.
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
    LONGEST_DURATION,
    Address,
    Known,
    NotRequested,
    Reading,
    Reservation,
    Snapshot,
    Unavailable,
    UnrecognizedEntry,
)

D = TypeVar("D")
T = TypeVar("T", datetime, timedelta)

_type_hints: Final[Callable[[Any], dict[str, Any]]] = cache(get_type_hints)
_MAX_INTEGER: Final = 2**63 * 10**9
"""A file's time in nanoseconds. The kernel has none that is greater."""
MAX_LEVELS: Final = 20
"""Levels of a document of nodeleak's own; none has more than ten."""
_SHOWN: Final = 40
"""Characters of a wrong value in a message."""

HISTORY_FILE: Final = "device-plugins.json"
LAST_SEEN_FILE: Final = "node.json"
HISTORY_SCHEMA: Final = "nodeleak.device-plugins/v1"
_LAST_SEEN_SCHEMA: Final = "nodeleak.node/v1"
_RECORDING_SCHEMA: Final = "nodeleak.recording/v1"


class Damaged(Exception):
    """The text is not what this version writes; the message names the place and the value."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One or more snapshots, and the settings with which they were assessed."""

    grace: timedelta
    confirm_after: timedelta
    snapshots: tuple[Snapshot, ...]


@dataclass(frozen=True, slots=True)
class StoredHistory:
    transitions: tuple[DeviceTransition, ...] = ()  # oldest first
    trouble: str | None = None
    """Why it, or an entry of it, could not be read; None: all of it could."""


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
    document = {"schema": HISTORY_SCHEMA, "transitions": plain(tuple(transitions))}
    return json.dumps(document, separators=(",", ":"))


def load_history(text: str | bytes) -> StoredHistory:
    """Read a history, without the entries that are damaged. Never raises, whatever the text."""
    try:
        listed = parse_document(text, HISTORY_SCHEMA).get("transitions")
    except Damaged as damaged:
        return StoredHistory(trouble=str(damaged))
    if not isinstance(listed, list):
        found = _short(listed)
        return StoredHistory(trouble=f"history.transitions: expected a list, found {found}")

    transitions = []
    damages = []
    for index, entry in enumerate(listed):
        try:
            transitions.append(build(DeviceTransition, entry, f"history.transitions[{index}]"))
        except Damaged as damaged:
            damages.append(str(damaged))

    trouble = None
    if damages:
        others = f", like {len(damages) - 1} others" if len(damages) > 1 else ""
        trouble = f"{damages[0]} (ignored{others})"
    return StoredHistory(tuple(transitions), trouble)


def dump_last_seen(last: LastSeen) -> str:
    return json.dumps({"schema": _LAST_SEEN_SCHEMA, **plain(last)})


def load_last_seen(text: str | bytes) -> LastSeen:
    """Read the Node as it was last seen; raises Damaged."""
    return build(LastSeen, parse_document(text, _LAST_SEEN_SCHEMA), "node")


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
    """Return whether a document is nested more deeply.

    Python parses a thousand levels, and cannot write them all.
    """
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    return levels == 0 or any(is_deeper(part, levels - 1) for part in parts)


def plain(value: Any) -> Any:
    """Return a value of the model as JSON has it."""
    match value:
        case Known(read):
            return {"known": plain(read)}
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
            return {field.name: _plain_field(value, field) for field in _recorded(value)}
        case _:
            return value


def _plain_field(value: Any, field: Field[Any]) -> Any:
    part = getattr(value, field.name)
    return field.metadata.get("none") if part is None else plain(part)


def _recorded(value: Any) -> Iterator[Field[Any]]:
    """Yield the fields of a dataclass, or of its class, that are recorded."""
    return (field for field in fields(value) if field.metadata.get("recorded", True))


def build(kind: type[D], tree: Any, path: str) -> D:
    """Build a dataclass of the model from its plain form; raises Damaged with the wrong path."""
    if not isinstance(tree, Mapping):
        raise Damaged(f"{path}: expected an object, found {_short(tree)}")

    hints = _type_hints(kind)
    arguments: dict[str, Any] = {}
    for field in _recorded(kind):
        name = field.name
        if name in tree and field.metadata.get("none", MISSING) == tree[name]:
            arguments[name] = None
        elif name in tree:
            arguments[name] = _value(hints[name], tree[name], f"{path}.{name}")
        elif field.default is MISSING:
            raise Damaged(f"{path}.{name}: missing")

    value = kind(**arguments)
    if isinstance(value, Reservation | Address):
        _check_address(value.ip, f"{path}.ip")
    elif isinstance(value, UnrecognizedEntry) and value.blocks:
        _check_address(value.name, f"{path}.name")
    return value


def _check_address(text: str, path: str) -> None:
    """Raise Damaged unless a text is an address as `net.IP.String()` of Go prints it."""
    address = _address(text, path)
    v6_only = isinstance(address, IPv6Address) and (address.scope_id or address.ipv4_mapped)
    if v6_only or str(address) != text:
        raise Damaged(f"{path}: {_short(text)} is not an address in canonical form")


def _address(text: Any, path: str) -> IPv4Address | IPv6Address:
    try:
        return ip_address(text if isinstance(text, str) else "")
    except ValueError as error:
        raise Damaged(f"{path}: {error}") from error


def _value(kind: Any, tree: Any, path: str) -> Any:
    """Read a value of an annotated type; raises Damaged with its path."""
    origin = get_origin(kind)
    arguments = get_args(kind)
    if NoneType in arguments:
        return None if tree is None else _value(arguments[0], tree, path)
    if IPv4Address in arguments:
        return _address(tree, path)
    if origin in {Union, UnionType}:
        return _reading(get_args(arguments[0])[0], tree, path)
    if origin is tuple:
        if not isinstance(tree, list):
            raise Damaged(f"{path}: expected a list, found {_short(tree)}")
        items = enumerate(tree)
        return tuple(_value(arguments[0], item, f"{path}[{index}]") for index, item in items)

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
    is_bool = isinstance(tree, bool)
    if kind is datetime and (at := datetime.fromisoformat(tree)).tzinfo is not None:
        return _bounded(at.astimezone(UTC), EARLIEST, LATEST)
    if kind is timedelta and not is_bool:
        return _bounded(timedelta(seconds=tree), -LONGEST_DURATION, LONGEST_DURATION)
    if issubclass(kind, StrEnum):
        return kind(tree)

    is_wrong_int = kind is int and (is_bool or abs(tree) > _MAX_INTEGER)
    if not isinstance(tree, kind) or is_wrong_int:
        raise TypeError(kind.__name__)
    return tree


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
            expected = "known, unavailable or not_requested"
            raise Damaged(f"{path}: expected {expected}, found {_short(tree)}")


def _short(tree: Any) -> str:
    """Write a wrong value for a message, in `_SHOWN` characters at most."""
    text = json.dumps(tree)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
