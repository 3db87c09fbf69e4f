"""The figures of clients that ask without pause, measured for a moment on a small node."""

import os
import shutil
import sys

from tests.bench import strangers
from tests.bench.surroundings import fake_node
from tests.wire import needs


def test_the_cost_of_clients_and_the_answers_beside_slow_ones_are_measured() -> None:
    with fake_node(1, "10.64.0.0/24") as (host, _):
        command = (sys.executable, "-m", "agent", "run", "--node=worker-1", "--api=off", *host.options)
        with strangers.daemon(command) as (pid, port):
            (figure,) = strangers.measured(pid, port, 1.0, ["/metrics"])
            flood = strangers.flooded(pid, port, 1.0)
            with strangers.slow_clients(port, 20):
                assert strangers.request(port, "/metrics")
            assert not strangers.request(port, "/nowhere")
    # CPU, not time: without its bound, the server takes half a core or more. A tick of the clock is 1 % of a second.
    assert float(figure.measured.split()[0]) < 20
    assert "answered 0 times" not in figure.what
    assert float(flood.measured.split()[0]) < 20
    assert "connect 0 times" not in flood.what


def test_scrapes_beside_slow_connections_of_two_addresses_are_counted() -> None:
    tools = all(map(shutil.which, ("ip", "unshare", "nsenter")))
    needs(os.geteuid() == 0 and tools, "root, iproute2 and util-linux, to make network namespaces")
    with fake_node(1, "10.64.0.0/24") as (host, _):
        command = (sys.executable, "-m", "agent", "run", "--node=worker-1", "--api=off", *host.options)
        figure = strangers.beside_slow_addresses(command, slow=20)
    assert (figure.measured, figure.met) == ("10 of 10", True)
    assert "40 connections" in figure.what
