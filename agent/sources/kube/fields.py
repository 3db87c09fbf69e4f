"""Parses fields of API objects.

Times, quantities, conditions, names of devices, and versions.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, TypeAlias

from agent.model.text import truncate
from agent.sources.source_error import MALFORMED, SourceError

Object: TypeAlias = Mapping[str, Any]
"""An object of the API, or a part of one, as JSON."""

RESOURCE: Final = (
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?"
    r"/[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
"""The qualified name of an extended resource, such as `nvidia.com/gpu`."""

_COUNT: Final = re.compile(r"([0-9]{1,18})([kMGTPE]|[KMGTPE]i)?")
_SCALES: Final = {
    **{suffix: 1000**power for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": 1024**power for power, suffix in enumerate("KMGTPE", start=1)},
}
_LARGEST_QUANTITY: Final = 2**63 - 1
"""Kubernetes has no larger ones either."""

_VERSION: Final = re.compile(r"[0-9]{1,20}")
_YEARS: Final = range(1970, 9000)
"""Nearer to the ends of the calendar, adding a duration overflows."""


@contextmanager
def parsing(what: str, kind: type[SourceError] = SourceError) -> Iterator[None]:
    """Raise this kind of error if the block finds something else than it expects."""
    try:
        yield
    except MALFORMED as error:
        raise kind(f"API server: {what} ({truncate(repr(error))})") from error


def moment(value: Any) -> datetime | None:
    """Parse an RFC 3339 time; None if it is missing or invalid."""
    try:
        time = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return time if time.tzinfo is not None and time.year in _YEARS else None


def count(value: Any) -> int | None:
    """Parse an integer quantity; None if it is none.

    The server writes 1000, the number of devices of KubeVirt, as `1k`.
    """
    matched = _COUNT.fullmatch(str(value))
    if matched is None:
        return None
    scale: int = _SCALES.get(matched[2], 1)
    return min(int(matched[1]) * scale, _LARGEST_QUANTITY)


def resource_version(metadata: Object) -> int:
    """Parse the version of an object or a list; raises KeyError or ValueError if it is no number.

    Officially it is opaque. It is etcd's revision, which only grows, and servers compare it as a
    number themselves.
    """
    text = str(metadata["resourceVersion"])
    if _VERSION.fullmatch(text) is None:
        raise ValueError(f"resourceVersion {text[:40]!r} is not a number")
    return int(text)


def is_device(resource: str) -> bool:
    """Whether it is an extended resource (`IsExtendedResourceName`): plugins offer no other."""
    is_native = "kubernetes.io/" in resource or resource.startswith("requests.")
    return not is_native and re.fullmatch(RESOURCE, resource) is not None


def objects(value: Any) -> list[Object]:
    """Return the objects of a list, and nothing else of it.

    An odd entry must not make the whole pod unreadable.
    """
    entries = value if isinstance(value, list) else ()
    return [entry for entry in entries if isinstance(entry, Mapping)]


def condition(status: Object, kind: str) -> Object:
    """Return a condition of a status; empty: it has none of this kind."""
    for entry in objects(status.get("conditions")):
        if entry.get("type") == kind:
            return entry
    return {}


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, interned because many objects have the same ones."""
    return tuple(sys.intern(name) for name in sorted(set(names)))
