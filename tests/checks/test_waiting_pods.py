"""Which pods wait for their sandbox: one answer, by the API server's clock."""

from dataclasses import replace
from datetime import timedelta

from agent.checks.waiting_pods import may_wait, waiting_pods
from agent.model.snapshot import Known, Pod, Snapshot
from tests.builders import NOW, node, pod, without

SECOND = timedelta(seconds=1)
WAITING = replace(pod("shop/web", phase="Pending"), ips=(), scheduled=NOW - 60 * SECOND)


def with_pod(one: Pod, skew: timedelta | None = None) -> Snapshot:
    return replace(node(), pods=Known((one,)), api_skew=skew)


def test_a_pod_waits_a_minute_after_it_was_scheduled_by_the_clock_of_the_api_server() -> None:
    late = replace(WAITING, scheduled=NOW - 59 * SECOND)
    assert waiting_pods(with_pod(WAITING)) == [WAITING]
    assert waiting_pods(with_pod(late)) == []
    assert waiting_pods(with_pod(late, skew=SECOND)) == [late]
    assert waiting_pods(with_pod(WAITING, skew=-SECOND)) == []
    for other in (
        replace(WAITING, ips=("10.244.1.9",)),
        replace(WAITING, host_network=True),
        replace(WAITING, phase="Failed"),
    ):
        assert not waiting_pods(with_pod(other))
        assert not may_wait(with_pod(other))
    assert waiting_pods(without(with_pod(WAITING), "pods")) == []


def test_a_pod_may_wait_if_nobody_knows_when_it_was_scheduled() -> None:
    unknown = replace(WAITING, scheduled=None)
    assert waiting_pods(with_pod(unknown)) == []
    assert may_wait(with_pod(unknown))
    assert may_wait(with_pod(WAITING))
    assert not may_wait(with_pod(replace(WAITING, scheduled=NOW)))


def test_a_pod_that_is_being_deleted_does_not_wait_and_its_last_add_may_still_run() -> None:
    deleted = replace(WAITING, deleting=True)
    assert waiting_pods(with_pod(deleted)) == []
    assert may_wait(with_pod(deleted))
    assert may_wait(with_pod(replace(deleted, scheduled=None)))
    assert not may_wait(with_pod(replace(deleted, ips=("10.244.1.9",))))
