"""Snapshots of a node as versioned JSON, and back.

The format is simple on purpose: every field under its own name, a reading as `{"known": […]}`, `{"unavailable": …}`
or `{"not_requested": …}`, times in ISO 8601, durations in seconds. Recordings outlive code: an unknown field is
ignored, a missing one is an error that names its place.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from agent.model.snapshot import Known, NotRequested, Reading, Snapshot, Unavailable

SCHEMA = "nodeleak.recording/v1"

D = TypeVar("D")


class Damaged(Exception):
    """The text is not a recording that this version can read."""


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
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"it is not JSON: {error}") from error
    if not isinstance(tree, dict) or "schema" not in tree:
        raise Damaged("it has no schema: `nodeleak record` writes recordings")
    if tree["schema"] != SCHEMA:
        raise Damaged(f"its schema is {tree['schema']!r}; this version reads {SCHEMA!r}")
    recording = build(Recording, tree, "recording")
    if not recording.snapshots:
        raise Damaged("recording.snapshots: it holds no snapshot")
    return recording


def anonymous(text: str, salt: str) -> str:
    """Replace every name of a node, pod, namespace and process; equal names stay equal. Addresses and ids stay."""
    tree = json.loads(text)
    names = {name: _hashed(name, salt) for name in _names(tree)}
    longest_first = sorted(names, key=len, reverse=True)

    def clean(node: Any, field: str = "") -> Any:
        if isinstance(node, dict):
            return {key: value if _is_kept(node, key) else clean(value, key) for key, value in node.items()}
        if isinstance(node, list):
            return [clean(value, field) for value in node]
        if isinstance(node, str) and field in _WHOLE:
            return names.get(node, node)
        if isinstance(node, str) and field in _NAMED:
            return "/".join(names.get(part, part) for part in node.split("/"))
        if isinstance(node, str) and field in _VOLUMES:
            kind, parts = _volume(node)
            return kind + "/".join(names.get(part, part) for part in parts)
        if isinstance(node, str) and field in {"why", "message"}:
            for name in longest_first:
                node = node.replace(name, names[name])
        return node

    return json.dumps(clean(tree), indent=1)


_WHOLE = frozenset({"provider_id", "earlier_id"})
"""Names whose slashes separate no names of ours: their parts (`aws:`, a zone) are words of their own elsewhere."""

_NAMED = frozenset({
    "node_name", "kubelet_name", "pod", "pod_uid", "uid", "name", "command", "boot_id", "container", "controller",
    "claim", "claims", "failed_pods",
})  # fmt: skip
_VOLUMES = frozenset({"volume", "volumes", "volumes_in_use", "volumes_attached"})
_KIND = re.compile(r"kubernetes\.io/csi/[^^]*\^|[^/]+/[^/]+/")
"""What a volume's name begins with: its plugin or driver, which its maker named."""


def _volume(name: str) -> tuple[str, list[str]]:
    """Return the kind of a volume, and the parts of its id."""
    kind = matched[0] if (matched := _KIND.match(name)) else ""
    return kind, name.removeprefix(kind).split("/")


def _names(node: Any, field: str = "") -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if not _is_kept(node, key):
                yield from _names(value, key)
    elif isinstance(node, list):
        for value in node:
            yield from _names(value, field)
    elif isinstance(node, str) and field == "controller":
        yield from node.split("/")[1:]  # its kind is no name
    elif isinstance(node, str) and node and field in _WHOLE:
        yield node
    elif isinstance(node, str) and field in _NAMED:
        yield from (part for part in node.split("/") if part)
    elif isinstance(node, str) and field in _VOLUMES:
        yield from (part for part in _volume(node)[1] if part)


def _is_kept(node: Mapping[str, Any], field: str) -> bool:
    """Tell names that are nobody's: an address, and a plugin's socket, which its maker named."""
    return _is_address(node, field) or (field == "name" and {"made", "connected"} <= node.keys())


def _is_address(node: Mapping[str, Any], field: str) -> bool:
    """Tell a foreign entry whose name is an address, by which its range is counted."""
    return field == "name" and node.get("blocks") is True


def _hashed(name: str, salt: str) -> str:
    return "x" + hashlib.sha256(f"{salt}{name}".encode()).hexdigest()[:10]


def plain(value: Any) -> Any:
    """Return a value of the model as JSON has it."""
    match value:
        case Known(known):
            return {"known": plain(known)}
        case Unavailable(source, why):
            return {"unavailable": {"source": source, "why": why}}
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
        if name == "ip" or _is_address(given, name):
            _check_address(value, f"{place}.{name}")
    return kind(**given)


def _check_address(text: str, place: str) -> None:
    try:
        address = ip_address(text)
    except ValueError as error:
        raise Damaged(f"{place}: {error}") from error
    if str(address) != text or (isinstance(address, IPv6Address) and (address.scope_id or address.ipv4_mapped)):
        raise Damaged(f"{place}: {_short(text)} is no address as a node writes it")


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
        if kind is datetime and (moment := datetime.fromisoformat(tree)).tzinfo is not None:
            return moment.astimezone(UTC)
        if kind is timedelta and not isinstance(tree, bool):
            return timedelta(seconds=tree)
        if issubclass(kind, StrEnum):
            return kind(tree)
        if isinstance(tree, kind) and not (kind is int and isinstance(tree, bool)):
            return tree
    except (TypeError, ValueError, OverflowError):
        pass
    raise Damaged(f"{place}: expected {kind.__name__}, found {_short(tree)}")


def _choice(kinds: tuple[Any, ...], tree: Any, place: str) -> Any:
    if NoneType in kinds:
        return None if tree is None else _value(next(kind for kind in kinds if kind is not NoneType), tree, place)
    if IPv4Address in kinds:
        try:
            return ip_address(tree)
        except ValueError as error:
            raise Damaged(f"{place}: {error}") from error
    return _reading(get_args(kinds[0])[0], tree, place)


def _reading(kind: Any, tree: Any, place: str) -> Reading[Any]:
    match tree:
        case {"known": value}:
            return Known(_value(kind, value, place))
        case {"unavailable": {"source": str(source), "why": str(why)}}:
            return Unavailable(source, why)
        case {"not_requested": {"source": str(source), "why": str(why)}}:
            return NotRequested(source, why)
        case _:
            raise Damaged(f"{place}: expected known, unavailable or not_requested, found {_short(tree)}")


def _short(tree: Any) -> str:
    text = json.dumps(tree)
    return text if len(text) <= 40 else f"{text[:37]}..."  # noqa: PLR2004 (enough to recognise it in a message)
