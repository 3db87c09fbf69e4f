"""What `make bench` measures of agents, with a few nodes on an API server of its own: each gets what it watches."""

import pytest

from tests.bench.scale import Sample, agents, cluster, sample
from tests.control_plane import ControlPlane, missing
from tests.wire import needs

from .node import eventually

pytestmark = pytest.mark.e2e

NODES = ["worker-1", "worker-2", "worker-3"]


def test_agents_list_and_watch_on_a_real_api_server() -> None:
    needs(not missing(), f"{', '.join(missing())}: run hack/cluster build")
    with cluster(NODES) as plane:
        before = sample(plane)
        with agents(plane, NODES, 0.1):
            after = eventually(lambda: with_watches(plane, before.watches + 2 * len(NODES)))
    lists = after.lists - before.lists
    assert (lists["pods"], lists["nodes"]) == (len(NODES), len(NODES))
    assert after.connections - before.connections >= len(NODES)
    assert after.cpu > before.cpu
    assert after.sent > before.sent
    assert after.memory > 0


def with_watches(plane: ControlPlane, count: int) -> Sample:
    found = sample(plane)
    assert found.watches == count
    return found
