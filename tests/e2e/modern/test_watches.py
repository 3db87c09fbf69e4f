"""The watches of an API server of today, which has the fix, give no evidence while pods come and go."""

import pytest

from tests.e2e.agent import Daemon
from tests.e2e.node import eventually

from .node import ModernNode

pytestmark = pytest.mark.e2e


def test_pods_that_come_and_go_are_no_replay(node: ModernNode) -> None:
    with node.daemon("--interval=200ms", "--confirm-after=0s", "--stale-after=3s") as daemon:
        for _ in range(2):
            names = node.ask_for(5)
            node.kubectl("delete", "pods", *reversed(names), "--grace-period=0", "--force")
        eventually(lambda: _watched_again(daemon), 30)
        assert daemon.opened("replayed_watch") == {}
        assert daemon.metrics().up("watches") == 1, "the detector must run"
        for resource in ("pods", "node"):
            assert daemon.metrics().get("watch_regressions_total", resource=resource) == 0


def _watched_again(daemon: Daemon) -> None:
    for resource in ("pods", "node"):
        assert (daemon.metrics().get("watch_restarts_total", resource=resource, cause="ended") or 0) >= 3
