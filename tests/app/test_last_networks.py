"""Whether silence of an address that was probed proves that nobody has it."""

from dataclasses import replace

import pytest

from agent.app.sources import LastNetworks
from agent.model.release import ProbeResult, Reason
from agent.model.runtime import RuntimeNetwork
from agent.model.snapshot import CniResult
from tests.builders import cni_result, node, reservation

IP = "10.244.1.9"
SILENT = ProbeResult(f"nobody on cbr0 has {IP}: host unreachable")


def last(configured: str = "") -> LastNetworks:
    networks = (RuntimeNetwork("kubenet", (configured, "portmap"), "host-local"),) if configured else ()
    snapshot = node(reservation(IP))
    known = LastNetworks(lambda: networks, lambda one: one.reservations)
    known.read_networks(snapshot)
    known.read_reservations(snapshot)
    return known


def cached(plugin: str) -> list[CniResult]:
    return [replace(cni_result("a" * 64, ""), plugin=plugin)]


@pytest.mark.parametrize(
    ("configured", "in_cache", "proves"),
    [
        ("bridge", "", True),
        ("", "bridge", True),
        ("flannel", "bridge", True),
        ("macvlan", "", False),
        ("bridge", "macvlan", False),
        ("acme", "", False),
        ("", "", False),
    ],
)
def test_silence_proves_something_only_for_pods_that_the_node_reaches(
    configured: str, in_cache: str, *, proves: bool
) -> None:
    found = last(configured).qualified(IP, SILENT, cached(in_cache) if in_cache else [])
    assert (found.asked, found.objection) == (proves, None)


def test_an_answer_is_one_whatever_the_plugin_is() -> None:
    answer = ProbeResult(f"{IP} answers", Reason.ADDRESS_IN_USE)
    assert last("macvlan").qualified(IP, answer, []) == answer
