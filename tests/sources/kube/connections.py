"""What commands and the daemon read from a fake API server."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.app import api_server, loop
from agent.app.sources import for_command
from agent.config import load
from agent.model.clocks import Moment
from agent.sources.kube.api import Api, ServerInfo
from agent.sources.kube.loader import loader
from agent.sources.source import Sources
from tests.builders import NOW

_DAEMON = load("run", {"node": "worker-1"}, {})


def moment() -> Moment:
    return Moment(NOW, timedelta(seconds=time.perf_counter()))


def connect(kubeconfig: Path) -> Api:
    return Api(loader(kubeconfig, 5.0).load(), 5.0, ServerInfo(moment))


def inquirer(get: Callable[..., bytes]) -> Callable[[], AbstractContextManager[Any]]:
    """Return what asks a function instead of a server."""

    @contextmanager
    def inquire() -> Iterator[Callable[..., bytes]]:
        yield get

    return inquire


def sources_of_command(config: Path, **options: str) -> Sources:
    """Return what a command reads with this kubeconfig."""
    given = {"node": "worker-1", "kubeconfig": str(config), **options}
    return for_command(load("scan", given, {})).snapshot


class Hurry(threading.Event):
    """A stop event that waits a fiftieth of the time."""

    def wait(self, timeout: float | None = None) -> bool:
        return super().wait(timeout and timeout / 50)


@contextmanager
def running(watches: Any, stop: threading.Event) -> Iterator[None]:
    """Run the watches of the daemon, each in its thread."""
    threads = [threading.Thread(target=watch.run, args=(stop,)) for watch in watches]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive()


@contextmanager
def watching_in_memory(api: Api, clock: Callable[[], float]) -> Iterator[tuple[Sources, Any]]:
    """Yield what the daemon reads, and its watch of the pods, where this is every connection to the API server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "clock", clock)
        patch.setattr(api_server.ApiServer, "connect", lambda _: api)
        sources, (watch, _) = api_server.watched(_DAEMON)
        yield sources.snapshot, watch
