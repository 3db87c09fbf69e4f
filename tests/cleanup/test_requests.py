"""Release requests: every sandbox with a reservation that docker does not list."""

from dataclasses import replace

import pytest

from agent.cleanup.guards import decide, passed_over, release_requests
from agent.model.runtime import ContainerRuntime
from agent.model.snapshot import Known, NotRequested
from tests.builders import (
    assessment,
    empty_file,
    guard_context,
    node,
    processes,
    reservation,
    sandbox,
    unrecognized,
    verdicts,
    without,
    without_api,
)
from tests.cleanup.leaks import LEAK, LEAK6, THE_ID, THE_IP, leaks, refusals


def test_no_guard_objects_to_a_plain_leak() -> None:
    assert verdicts(guard_context(node(LEAK))) == {THE_IP: ()}
    assert verdicts(guard_context(without_api(node(LEAK)))) == {THE_IP: ()}


def test_a_healthy_node_has_no_request() -> None:
    assert release_requests(assessment(node())) == ()
    assert decide(guard_context(node())) == ()


def test_a_listed_container_in_any_state_is_not_requested() -> None:
    stopped = node(LEAK, sandbox(THE_ID, "shop/gone", "exited"))
    assert release_requests(assessment(stopped)) == ()


def test_unrecognized_entries_are_not_requested() -> None:
    assert release_requests(assessment(node(unrecognized("notes.txt"), unrecognized("10.244.1.77", blocks=True)))) == ()


def test_without_dockers_list_there_is_no_request() -> None:
    assert release_requests(assessment(without(node(LEAK), "containers"))) == ()
    left_alone = replace(node(LEAK), containers=NotRequested("containers", "for no reason"))
    assert release_requests(assessment(left_alone)) == ()


def test_a_sandbox_is_one_request_across_networks_and_an_empty_file_its_own() -> None:
    other = reservation("10.9.0.2", network="storage", ifname="net1")
    empty = [empty_file("10.244.1.30"), empty_file("10.244.1.31")]
    found = release_requests(assessment(node(other, LEAK6, LEAK, *empty)))
    assert [one.reservations for one in found] == [(LEAK, LEAK6, other), *((one,) for one in empty)]
    assert found[0].networks == ("kubenet", "storage")


def test_two_networks_may_have_an_empty_file_of_one_address() -> None:
    twins = [empty_file(THE_IP), replace(empty_file(THE_IP), network="storage")]
    assert [one.reservations for one in release_requests(assessment(node(*twins)))] == [(twins[0],), (twins[1],)]


def test_requested_by_name_a_sandbox_includes_all_its_addresses() -> None:
    gathered = release_requests(assessment(node(LEAK, LEAK6, *leaks(2))), frozenset({"fd00::9"}))
    assert [one.reservations for one in gathered] == [(LEAK, LEAK6)]
    assert release_requests(assessment(node(LEAK)), frozenset({"10.244.1.200"})) == ()
    assert release_requests(assessment(node(LEAK)), frozenset()) == ()


def test_an_address_requested_by_name_without_anything_to_release_is_explained() -> None:
    asked = frozenset({THE_IP, "10.244.1.2", "10.244.1.77", "10.244.1.99"})
    looked = assessment(node(LEAK, unrecognized("10.244.1.77", blocks=True)))
    assert [(one.ip, one.network, one.why) for one in passed_over(looked, asked)] == [
        ("10.244.1.2", "kubenet", "in use: its container is running"),
        ("10.244.1.77", "kubenet", "unrecognized: it is a directory"),
        ("10.244.1.99", "", "not reserved"),
    ]
    assert passed_over(looked, None) == ()
    (incomplete,) = passed_over(assessment(without(node(LEAK), "reservations")), frozenset({THE_IP}))
    assert incomplete.why == "not known: cannot read network kubenet"


def test_an_empty_file_can_be_released_like_any_leak() -> None:
    assert refusals(node(empty_file(THE_IP))) == ()


@pytest.mark.parametrize(
    ("name", "version", "kept"),
    [
        ("cri-o", "1.32.0", True),
        ("cri-o", "1.37.0-dev", True),
        ("cri-o", "1.31.13", False),
        ("cri-o", "", False),
        ("containerd", "2.1.9", False),
    ],
)
def test_a_cached_result_stays_for_a_runtime_that_deletes_at_its_start(name: str, version: str, kept: bool) -> None:
    socket = "/run/mine.sock"
    snapshot = replace(
        node(LEAK, processes=[replace(processes(), runtime=socket)]),
        runtimes=Known((ContainerRuntime(name, version, socket), ContainerRuntime("docker", "20.10.1"))),
    )
    (request,) = release_requests(assessment(snapshot))
    assert request.keeps_results is kept
