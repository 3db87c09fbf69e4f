"""Parses fields of API objects: times, quantities, conditions, names of devices and volumes, and versions."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeAlias

from agent.model.text import truncate
from agent.sources.source_error import SourceError

RESOURCE = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?/[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"

Object: TypeAlias = Mapping[str, Any]  # of the API, or a part of one, as JSON
_COUNT = re.compile(r"([0-9]{1,18})([kMGTPE]|[KMGTPE]i)?")
_SCALES = {suffix: 1000**power for power, suffix in enumerate("kMGTPE", start=1)}
_SCALES |= {f"{suffix}i": 1024**power for power, suffix in enumerate("KMGTPE", start=1)}
_LARGEST_QUANTITY = 2**63 - 1  # Kubernetes has no larger ones either
_VERSION = re.compile(r"[0-9]{1,20}")
_YEARS = range(1970, 9000)  # nearer to the ends of the calendar, adding a duration overflows


@contextmanager
def parsing(what: str, kind: type[SourceError] = SourceError) -> Iterator[None]:
    """Raise this kind of error if the block finds something else than it expects."""
    try:
        yield
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise kind(f"API server: {what} ({truncate(repr(error))})") from error


def moment(written: Any) -> datetime | None:
    """Parse an RFC 3339 time; None if it is missing or invalid."""
    try:
        read = datetime.fromisoformat(written)
    except (TypeError, ValueError):
        return None
    return read if read.tzinfo is not None and read.year in _YEARS else None


def count(written: Any) -> int | None:
    """Parse an integer quantity; the server writes 1000, the number of devices of KubeVirt, as `1k`."""
    matched = _COUNT.fullmatch(str(written))
    return min(int(matched[1]) * _SCALES.get(matched[2], 1), _LARGEST_QUANTITY) if matched else None


def resource_version(metadata: Object) -> int:
    """Parse the version of an object or a list; raises KeyError or ValueError if it is not a number."""
    # Officially it is opaque. It is etcd's revision, which only grows, and servers compare it as a number themselves.
    written = str(metadata["resourceVersion"])
    if _VERSION.fullmatch(written) is None:
        raise ValueError(f"resourceVersion {written[:40]!r} is not a number")
    return int(written)


def is_device(resource: str) -> bool:
    """Whether it is an extended resource (`IsExtendedResourceName`): device plugins offer no other."""
    is_native = "kubernetes.io/" in resource or resource.startswith("requests.")
    return not is_native and re.fullmatch(RESOURCE, resource) is not None


def objects(written: Any) -> list[Object]:
    """Return the objects of a list without anything else: an odd entry must not make the whole pod unreadable."""
    return [
        entry
        for entry in (written if isinstance(written, list) else ())
        if isinstance(entry, Mapping)
    ]


def condition(status: Object, kind: str) -> Object:
    """Return a condition of a status; empty: it has none of this kind."""
    return next(
        (entry for entry in objects(status.get("conditions")) if entry.get("type") == kind), {}
    )


def sorted_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names, interned because many objects have the same ones."""
    return tuple(sys.intern(name) for name in sorted(set(names)))
