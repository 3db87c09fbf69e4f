"""Reads one of the sources of a node, as the collector does."""

from typing import Any, Final

from agent.model.snapshot import Known, NotRequested, Reading, Snapshot, Unavailable
from agent.sources.source import Source, Sources, WithFields
from agent.sources.source_error import SourceError
from tests.builders import node

HEALTHY: Final = node()


def named(sources: Sources, name: str) -> Source:
    (source,) = (source for source in sources if source.name == name)
    return source


def value_of(sources: Sources, name: str, snapshot: Snapshot = HEALTHY) -> Any:
    """Return what a source returns, without its further fields; `snapshot`: what was read before."""
    value = named(sources, name).read(snapshot)
    return value.value if isinstance(value, WithFields) else value


def fields_of(sources: Sources, name: str, snapshot: Snapshot = HEALTHY) -> dict[str, Any]:
    """Return the further fields that come with a source's answer."""
    value = named(sources, name).read(snapshot)
    return dict(value.fields) if isinstance(value, WithFields) else {}


def read(sources: Sources, name: str, snapshot: Snapshot = HEALTHY) -> Reading[Any]:
    """Return the reading of one source; `snapshot`: what was read before it."""
    try:
        value = value_of(sources, name, snapshot)
    except SourceError as error:
        return Unavailable(name, str(error))
    return value if isinstance(value, (Known, Unavailable, NotRequested)) else Known(value)
