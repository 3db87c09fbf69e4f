"""An outage of the API server on 200 nodes: what people are sent by a real Prometheus and a real Alertmanager."""

from pathlib import Path

import pytest

from tests.builders import OF_THE_API_SERVER, node, without
from tests.exporters.daemon import Daemon

from .fleet import SPEED, Agents, monitoring, paths_of
from .node import eventually, throughout

pytestmark = pytest.mark.e2e

NODES = 200
LONG = 300
MOST_NOTIFICATIONS = 4


def test_an_outage_of_the_api_server_sends_a_few_notifications(tmp_path: Path) -> None:
    healthy = Daemon().syncs(3, node())
    page = healthy.scrape()
    with Agents(page) as agents, monitoring(paths_of(agents.address, NODES), tmp_path) as running:
        prometheus, told = running.prometheus, running.told

        def up() -> list[int]:
            counted = prometheus.get("/api/v1/query?query=count(up==1)")["result"]
            return [int(sample["value"][1]) for sample in counted]

        def firing() -> dict[str, int]:
            return {name: len(alerts) for name, alerts in prometheus.firing().items()}

        def sent() -> set[str]:
            return {status for status, _, _ in told.summary()}

        eventually(up, LONG, equal=[NODES])
        throughout(lambda: (firing(), told.all), 12 * 60 / SPEED, equal=({}, []))

        agents.page = healthy.sync(without(node(), *OF_THE_API_SERVER)).scrape()
        # A source is down for five minutes before it counts, and the alert of a node waits for ten.
        # These agents only observe, and nobody is told of their brake.
        sources = len({*OF_THE_API_SERVER} - {"brake"})
        eventually(lambda: firing().get("NodeleakSourceDown"), LONG, equal=NODES * sources)
        assert firing()["NodeleakSourceDownManyNodes"] == sources
        eventually(lambda: "firing" in sent(), LONG, equal=True)

        agents.page = page
        eventually(firing, LONG, equal={})
        eventually(lambda: "resolved" in sent(), LONG, equal=True)
    assert {alert for _, alert, _ in told.summary()} == {"NodeleakSourceDownManyNodes"}, (
        told.summary()
    )
    assert len(told.all) <= MOST_NOTIFICATIONS, told.summary()
