"""The fake nodes that are measured are healthy: figures of a node with findings would be of something else."""

import json

import pytest

from tests.bench.surroundings import environment, fake_node
from tests.cli.commands import nodeleak


def test_a_node_that_holds_more_is_as_healthy() -> None:
    with fake_node(3, "10.64.0.0/20", evicted=20, exited=2) as (host, _):
        options = ("scan", "-o", "json", "--node=worker-1", f"--kubeconfig={host.kubeconfig}", *host.options)
        found = json.loads(nodeleak(*options).out)
    assert [one["state"] for one in found["reservations"]] == ["in_use"] * 3
    assert (found["findings"], found["unavailable"]) == ([], [])


@pytest.mark.parametrize("runtime", ["docker://19.3.15", "containerd://1.6.20~ds1"])
@pytest.mark.parametrize("api", ["off", "on"])
def test_every_address_of_a_fake_node_is_in_use(runtime: str, api: str) -> None:
    with fake_node(3, "10.64.0.0/20", runtime=runtime) as (host, _):
        options = host.options if runtime.startswith("docker") else host.options_without_docker
        server = "--api=off" if api == "off" else f"--kubeconfig={host.kubeconfig}"
        done = nodeleak("scan", "-o", "json", "--exit-code", "--node=worker-1", server, *options)
    document = json.loads(done.out)
    assert [one["state"] for one in document["reservations"]] == ["in_use"] * 3
    assert (done.code, document["findings"], document["unavailable"]) == (0, [], [])


def test_what_is_measured_has_the_environment_of_the_image() -> None:
    assert environment(ANOTHER="1").items() >= {"MALLOC_ARENA_MAX": "1", "ANOTHER": "1"}.items()
