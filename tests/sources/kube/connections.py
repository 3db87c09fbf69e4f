"""Connections to a fake API server."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from agent.model.snapshot import Known, NotRequested, Reading, Unavailable
from agent.sources.collector import Moment
from agent.sources.kube.client import Api, Get, Inquire, Query, Resource, ServerInfo
from agent.sources.source_error import SourceError
from tests.builders import NOW


def moment() -> Moment:
    return Moment(NOW, timedelta(seconds=time.perf_counter()))


def connect(kubeconfig: Path | None, timeout: float = 5.0, info: ServerInfo | None = None) -> Api:
    return Api(kubeconfig, timeout, info or ServerInfo(moment))


def inquirer(get: Callable[..., bytes]) -> Inquire:
    """Return what asks a function instead of a server."""

    @contextmanager
    def inquire() -> Iterator[Get]:
        yield get

    return inquire


def reading_of(source: str, read: Callable[[], Any]) -> Reading[Any]:
    """Return what the snapshot has of it."""
    try:
        found = read()
    except SourceError as error:
        return Unavailable(source, str(error))
    return found if isinstance(found, NotRequested) else Known(found)


def things(path: str = "/api/v1/pods", query: Query = (), field: str = "says") -> Resource[str]:
    """Return objects that are known by one of their fields."""

    def parse(item: Mapping[str, Any]) -> str:
        return str(item["metadata"]["uid"] if field == "uid" else item[field])

    return Resource("pods", path, query, parse)


NODE = Resource("node", "/api/v1/nodes", (("fieldSelector", "metadata.name=worker-1"),), lambda _: "worker-1")
