"""How many connections a settled daemon has to the API server: each costs that server memory, for each node."""

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from agent.app import api_server
from agent.config import load
from agent.model.snapshot import Known
from agent.sources.collector import Sources
from agent.sources.kube import list_watch
from tests.builders import node
from tests.fakes.apiserver import apiserver
from tests.fakes.nodes import healthy
from tests.wire import established, kubeconfig, until

_REFERENCE = Path(__file__).parents[2] / "docs/reference.md"
_WATCH = "2s"
"""`--stale-after`, so that each watch lasts a second."""


@contextmanager
def watching(url: str, home: Path) -> Iterator[Sources]:
    """Run the daemon's watches."""
    given = {"node": "worker-1", "kubeconfig": str(kubeconfig(home / "kubeconfig", url)), "stale_after": _WATCH}
    sources, watches = api_server.watched(load("run", given, {}))
    stop = threading.Event()
    running = [threading.Thread(target=watch.run, args=(stop,)) for watch in watches]
    for thread in running:
        thread.start()
    try:
        yield sources
    finally:
        stop.set()
        for thread in running:
            thread.join()


def documented() -> int:
    (number,) = re.findall(r"A settled daemon has (\d+) connections to the API server", _REFERENCE.read_text())
    return int(number)


def test_a_settled_daemon_has_the_documented_connections_and_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whether etcd was restored is asked beside every watch, as is the version beside the first.
    monkeypatch.setattr(list_watch, "_CHECK_PERIOD", 0.0)
    fake = healthy(datetime.fromisoformat("2026-03-26T20:00:00Z"), 3, "10.244.1.0/24")
    with apiserver(fake) as url, watching(url, tmp_path) as sources:
        port = urlsplit(url).port or 0

        def requests(kind: str) -> int:
            with urlopen(f"{url}/fake/requests") as answer:  # noqa: S310 (the fake)
                return int(json.load(answer).get(kind, 0))

        until(lambda: requests("GET version") == 2, "both connections have asked for the version")
        seen, number = list[set[str]](), documented()

        def is_settled() -> bool:
            seen.append(established(port))
            return len(seen[-1]) == number

        until(is_settled, "only those of the watches are left")
        settled = seen[-1]
        begun = requests("WATCH pods"), requests("WATCH nodes"), requests("LIST nodes")
        until(lambda: requests("WATCH pods") > begun[0] + 1, "the watch of the pods has begun again, twice")
        until(lambda: requests("WATCH nodes") > begun[1] + 1, "the watch of the Node has begun again, twice")
        assert requests("LIST nodes") > begun[2], "etcd's revision was asked for meanwhile"
        until(lambda: established(port) == settled, f"{settled} are used again, not {established(port)}")
        assert all(isinstance(sources.readers[name](node()), Known) for name in ("pods", "node"))
