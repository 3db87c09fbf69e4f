"""How many connections a settled daemon has to the API server: each costs that server memory, for each node."""

import json
import re
import threading
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from agent.app import loop
from agent.app.api_server import watched
from agent.config import load
from agent.model.snapshot import Known
from tests.fakes.apiserver import apiserver
from tests.fakes.nodes import healthy
from tests.sources.kube.connections import read, running
from tests.wire import established, kubeconfig, until

_REFERENCE = Path(__file__).parents[2] / "docs/reference.md"


def documented() -> int:
    (number,) = re.findall(r"A settled daemon has (\d+) connections to the API server", _REFERENCE.read_text())
    return int(number)


def test_a_settled_daemon_has_the_documented_connections_and_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, ahead = loop.clock, 0.0
    monkeypatch.setattr(loop, "clock", lambda: clock() + ahead)
    fake = healthy(datetime.fromisoformat("2026-03-26T20:00:00Z"), 3, "10.244.1.0/24")
    with apiserver(fake) as url:
        config = str(kubeconfig(tmp_path / "kubeconfig", url))
        # So that each watch lasts a second.
        sources, watches = watched(load("run", {"node": "worker-1", "kubeconfig": config, "stale_after": "2s"}, {}))
        port, seen, number = urlsplit(url).port or 0, list[set[str]](), documented()

        def requests(kind: str) -> int:
            with urlopen(f"{url}/fake/requests") as answer:  # noqa: S310 (the fake)
                return int(json.load(answer).get(kind, 0))

        def is_settled() -> bool:
            seen.append(established(port))
            return len(seen[-1]) == number

        with running(watches, threading.Event()):
            until(lambda: requests("GET version") == 2, "both connections have asked for the version")
            until(is_settled, "only those of the watches are left")
            settled = seen[-1]
            begun = requests("WATCH pods"), requests("WATCH nodes"), requests("LIST nodes")
            ahead = 2000.0  # it is time to ask whether etcd was restored, beside a watch
            until(lambda: requests("WATCH pods") > begun[0] + 1, "the watch of the pods has begun again, twice")
            until(lambda: requests("WATCH nodes") > begun[1] + 1, "the watch of the Node has begun again, twice")
            assert requests("LIST nodes") > begun[2], "etcd's revision was asked for meanwhile"
            until(lambda: established(port) == settled, f"{settled} are used again, not {established(port)}")
            assert all(isinstance(read(sources, name), Known) for name in ("pods", "node"))
