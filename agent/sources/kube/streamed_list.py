"""Reads a list of the API server as it arrives, so that only one object at a time is in memory.

Servers ignore `limit` where they list from their cache, and 6,000 evicted pods are 70 MB.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, NamedTuple, TypeVar

from agent.sources.json_list import objects_of
from agent.sources.json_tree import text_field
from agent.sources.kube.api import LARGEST_OBJECT, Api, Resource
from agent.sources.kube.connection import Query
from agent.sources.kube.fields import parsing, resource_version
from agent.sources.kube.replica import Replica

_T = TypeVar("_T")

_LONGEST_HEAD: Final = 64 * 1024
"""Bytes before the items of a list: its own metadata."""
_LIMIT: Final = ("limit", "500")
"""Objects in a page. A node has fewer pods, so one page is the rule."""

_NO_LIST: Final = "the response is not a list of objects"
_ITEMS: Final = re.compile(rb'"items":\s*(\[|null)')


class _Page(NamedTuple):
    """A part of a list, as the server divides it."""

    version: int
    continuation: str
    """Empty: it is the last page."""
    items: Iterator[dict[str, Any]]


def list_once(api: Api, resource: Resource[_T]) -> tuple[_T, ...]:
    """List a resource without watching it, read through to etcd; raises SourceError."""
    replica = Replica(resource.parse, lambda *_: None)
    with list_all(api, resource.path, resource.query) as (version, items):
        replica.replace(version, items, consistent=True)
    return replica.items()


@contextmanager
def list_all(api: Api, path: str, query: Query) -> Iterator[tuple[int, Iterator[dict[str, Any]]]]:
    """Yield a list's version, and its items as they arrive; raises SourceError, as they may."""
    # With a limit, a given version means exactly that version and not "this or newer" (KEP-2523);
    # "0" means any.
    is_exact = any(name == "resourceVersion" and value not in {"", "0"} for name, value in query)
    first_query = query if is_exact else (*query, _LIMIT)

    with api.read(path, first_query) as pieces:
        page = _parse_page(pieces)
        yield page.version, _all_items(api, path, query, page)


def _all_items(api: Api, path: str, query: Query, page: _Page) -> Iterator[dict[str, Any]]:
    """Yield the items of this page and of all that follow; raises SourceError."""
    yield from page.items

    unversioned = tuple((name, value) for name, value in query if name != "resourceVersion")
    while page.continuation:
        next_query = (*unversioned, _LIMIT, ("continue", page.continuation))
        with api.read(path, next_query) as pieces:
            page = _parse_page(pieces)
            yield from page.items


def _parse_page(pieces: Iterable[bytes]) -> _Page:
    """Return a page whose items are still to be read; raises SourceError, as they may."""
    arriving = iter(pieces)
    head = b""
    with parsing(_NO_LIST):
        while not (start := _ITEMS.search(head)):
            piece = next(arriving, b"")
            if not piece or len(head) > _LONGEST_HEAD:
                raise ValueError(f"there are no items in its first {len(head):,} bytes")
            head += piece

        metadata = json.loads(head[: start.start()] + b'"items":[]}')["metadata"]
        version = resource_version(metadata)
        continuation = text_field(metadata, "continue")

    if start[1] == b"null":  # Go may write an empty list so
        return _Page(version, continuation, iter(()))
    rest = chain([head[start.start(1) :]], arriving)
    return _Page(version, continuation, _items(rest))


def _items(pieces: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the items that begin with `pieces`; raises SourceError."""
    with parsing(_NO_LIST):
        yield from objects_of(pieces, LARGEST_OBJECT, end="}")
