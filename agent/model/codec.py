"""Frozen dataclasses as JSON, and back: recordings and state files.

The format is simple on purpose: every field under its own name, a reading as `{"known": …}`, `{"unavailable": …}` or
`{"not_requested": …}`, times in ISO 8601, durations in seconds. An unknown field is ignored; a missing one is an error
that names its place.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from agent.model.snapshot import Known, NotRequested, Reading, Unavailable

D = TypeVar("D")

_GREATEST: Final = 2**64
"""Of integers. The kernel has none that is greater, and a float cannot hold every other one."""


class Damaged(Exception):
    """The text is not what this version writes; the message names the place and the value."""


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
            return [plain(item) for item in value]
        case _ if is_dataclass(value):
            return {field.name: plain(getattr(value, field.name)) for field in fields(value) if field.compare}
        case _:
            return value


def build(kind: type[D], tree: Any, place: str) -> D:
    """Build a dataclass of the model from its plain form; raises Damaged with the place that is wrong."""
    if not isinstance(tree, Mapping):
        raise Damaged(f"{place}: expected an object, found {_short(tree)}")
    hints = get_type_hints(kind)
    given: dict[str, Any] = {}
    for field in fields(cast("Any", kind)):
        if not field.compare:
            continue
        if field.name not in tree and field.default is not MISSING:
            continue  # a recording of a version that did not know it
        if field.name not in tree:
            raise Damaged(f"{place}.{field.name}: missing")
        given[field.name] = _value(hints[field.name], tree[field.name], f"{place}.{field.name}")
    for name, value in given.items():
        if name == "ip" or is_blocked_address(given, name):
            _check_address(value, f"{place}.{name}")
    return kind(**given)


def _check_address(text: str, place: str) -> None:
    try:
        address = ip_address(text)
    except ValueError as error:
        raise Damaged(f"{place}: {error}") from error
    if str(address) != text or (isinstance(address, IPv6Address) and (address.scope_id or address.ipv4_mapped)):
        raise Damaged(f"{place}: {_short(text)} is not an address in canonical form")


def _value(kind: Any, tree: Any, place: str) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, UnionType}:
        return _choice(arguments, tree, place)
    if origin is tuple:
        if not isinstance(tree, list):
            raise Damaged(f"{place}: expected a list, found {_short(tree)}")
        return tuple(_value(arguments[0], item, f"{place}[{index}]") for index, item in enumerate(tree))
    if is_dataclass(kind):
        return build(cast("type[Any]", kind), tree, place)
    try:
        return _scalar(kind, tree)
    except (TypeError, ValueError, OverflowError) as error:
        raise Damaged(f"{place}: expected {kind.__name__}, found {_short(tree)}") from error


def _scalar(kind: Any, tree: Any) -> Any:
    """Read a value without parts; raises TypeError, ValueError or OverflowError."""
    if kind is datetime and (moment := datetime.fromisoformat(tree)).tzinfo is not None:
        return moment.astimezone(UTC)
    if kind is timedelta and not isinstance(tree, bool):
        return timedelta(seconds=tree)
    if issubclass(kind, StrEnum):
        return kind(tree)
    if isinstance(tree, kind) and not (kind is int and (isinstance(tree, bool) or abs(tree) > _GREATEST)):
        return tree
    raise TypeError(kind.__name__)


def _choice(kinds: tuple[Any, ...], tree: Any, place: str) -> Any:
    if NoneType in kinds:
        return None if tree is None else _value(next(kind for kind in kinds if kind is not NoneType), tree, place)
    if IPv4Address in kinds:
        if not isinstance(tree, str):
            raise Damaged(f"{place}: expected an address, found {_short(tree)}")
        try:
            return ip_address(tree)
        except ValueError as error:
            raise Damaged(f"{place}: {error}") from error
    return _reading(get_args(kinds[0])[0], tree, place)


def _reading(kind: Any, tree: Any, place: str) -> Reading[Any]:
    match tree:
        case {"known": value}:
            return Known(_value(kind, value, place))
        case {"unavailable": {"source": str(source), "why": str(why), **more}}:
            return Unavailable(source, why, more.get("missing") is True)
        case {"not_requested": {"source": str(source), "why": str(why)}}:
            return NotRequested(source, why)
        case _:
            raise Damaged(f"{place}: expected known, unavailable or not_requested, found {_short(tree)}")


def _short(tree: Any) -> str:
    text = json.dumps(tree)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004 (enough to recognize it in a message)


def is_blocked_address(node: Mapping[str, Any], field: str) -> bool:
    """Return whether a field is the name of an unrecognized entry that takes an address."""
    return field == "name" and node.get("blocks") is True
