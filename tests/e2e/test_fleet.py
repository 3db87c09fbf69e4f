"""An outage of the API server on 200 nodes: what people are sent by a real Prometheus and a real Alertmanager."""

from pathlib import Path

import pytest

from tests.builders import OF_THE_API_SERVER, node, without
from tests.exporters.daemon import Daemon

from .fleet import SPEED, Notifications, fleet
from .node import eventually, throughout
from .prometheus import Prometheus

pytestmark = pytest.mark.e2e

NODES = 200
MINUTE = 60 / SPEED
LONG = 300
MOST_NOTIFICATIONS = 4


def test_an_outage_of_the_api_server_sends_a_few_notifications(tmp_path: Path) -> None:
    healthy = Daemon().syncs(3, node())
    page = healthy.scrape()
    outage = healthy.sync(without(node(), *OF_THE_API_SERVER)).scrape()
    with fleet(NODES, page, tmp_path) as (agents, prometheus, told):
        eventually(lambda: all_are_up(prometheus), LONG)
        throughout(lambda: quiet(prometheus, told), 12 * MINUTE)

        agents.page = outage
        # A source is down for five minutes before it counts, and the alert of a node waits for ten.
        eventually(lambda: fires(prometheus, "NodeleakSourceDown", NODES * len(OF_THE_API_SERVER)), LONG)
        assert fires(prometheus, "NodeleakSourceDownManyNodes", len(OF_THE_API_SERVER))
        eventually(lambda: sent(told, "firing"), LONG)

        agents.page = page
        eventually(lambda: quiet_again(prometheus), LONG)
        eventually(lambda: sent(told, "resolved"), LONG)
    assert {alert for _, alert, _ in told.summary()} == {"NodeleakSourceDownManyNodes"}, told.summary()
    assert len(told.all) <= MOST_NOTIFICATIONS, told.summary()


def all_are_up(prometheus: Prometheus) -> None:
    counted = prometheus.get("/api/v1/query?query=count(up==1)")["result"]
    assert [int(one["value"][1]) for one in counted] == [NODES]


def quiet(prometheus: Prometheus, told: Notifications) -> None:
    assert (prometheus.firing(), told.all) == ({}, [])


def quiet_again(prometheus: Prometheus) -> None:
    assert prometheus.firing() == {}


def fires(prometheus: Prometheus, alert: str, times: int) -> bool:
    assert len(prometheus.firing().get(alert, ())) == times
    return True


def sent(told: Notifications, status: str) -> None:
    assert status in {one for one, _, _ in told.summary()}
