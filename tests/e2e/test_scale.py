"""The measurement of docs/scale.md with a few nodes, on an API server of its own: everybody gets what they watch."""

from pathlib import Path

import pytest

from tests.scale import control_plane
from tests.scale.control_plane import ControlPlane
from tests.scale.metrics import Sample, sample
from tests.scale.objects import SHARED_PER_NODE
from tests.scale.session import Plan, session
from tests.wire import needs

from .node import eventually

pytestmark = pytest.mark.e2e

NODES = 3
WATCHES = {"agents": 2, "kubelets": 15}


def test_agents_and_kubelets_list_and_watch_on_a_real_api_server(tmp_path: Path) -> None:
    needs(not (missing := control_plane.missing()), f"{', '.join(missing)}: run hack/cluster build")
    log = tmp_path / "clients.log"
    with session(Plan(NODES, pods=SHARED_PER_NODE, spread=0.1), log) as running:
        plane = running.plane
        plane.start_api_server()
        idle = sample(plane, memory=False).watches
        for kind, watches in WATCHES.items():
            before = eventually(lambda: with_watches(plane, idle))
            with running.clients(kind):
                after = sample(plane, memory=True)
            assert after.watches - before.watches == watches * NODES, log.read_text()
            requests = after.requests - before.requests
            assert (requests["LIST pods"], requests["LIST nodes"]) == (NODES, NODES)
            assert after.connections - before.connections >= NODES
            assert after.cpu > before.cpu
            assert after.written > before.written
            assert after.live > 0


def with_watches(plane: ControlPlane, count: int) -> Sample:
    """Those of clients that have just ended may still be counted."""
    found = sample(plane, memory=False)
    assert found.watches == count
    return found
