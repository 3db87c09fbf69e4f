"""A plugin that fails: each retry of a pod takes another address."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.cleanup.guards import decide
from agent.exporters.text.scan import scan_table
from agent.model.release import Limits, Reason
from agent.model.snapshot import Snapshot
from tests import builders as b
from tests.builders import (
    WORKER,
    findings_of,
    node,
    processes,
    reservation,
    scanned,
    with_waiting_pod,
)
from tests.cleanup.leaks import SECOND, leaks

FAILING = "failing_plugin"
MINUTE = timedelta(minutes=1)


def treadmill(count: int = 12, age: timedelta = 8 * MINUTE, **more: Any) -> Snapshot:
    return with_waiting_pod(node(*leaks(count, age), **more))


def message(detector: str, snapshot: Snapshot) -> str:
    return b.the_finding(detector, snapshot).message


def refused(snapshot: Snapshot, limits: Limits | None = None) -> set[Reason]:
    return {
        refusal.reason
        for _, refusals in decide(b.guard_context(snapshot, limits=limits))
        for refusal in refusals
    }


def test_it_says_how_many_addresses_are_lost_and_how_fast() -> None:
    assert message(FAILING, treadmill()) == (
        "kubenet: a CNI plugin fails in ADD and DEL; 12 addresses leaked since 2026-03-26 19:52:01Z, 2 a minute: "
        "repair the plugin first, then release"
    )


def test_other_leaks_are_no_failing_plugin() -> None:
    completed = [
        b.cni_result(leak.container_id, "shop/gone", "10.244.1.0/24") for leak in leaks(12)
    ]
    for why, snapshot in {
        "few": treadmill(4),
        "old": treadmill(age=timedelta(hours=1)),
        "before the runtime's start": treadmill(processes=[processes(docker=7 * MINUTE)]),
        "ADD was completed": treadmill(cni_results=completed),
        "start not known": treadmill(processes=[processes(docker=None)]),
        "no pod waits": node(*leaks(12, 8 * MINUTE)),
    }.items():
        assert findings_of(FAILING, snapshot) == [], why
    assert b.gap_of(FAILING, b.without(treadmill(), "processes"))


def test_the_daemon_releases_nothing_and_a_person_may() -> None:
    daemon = b.make_limits(unattended=True)
    assert Reason.PLUGIN_FAILING in refused(treadmill(), daemon)
    assert Reason.PLUGIN_FAILING not in refused(treadmill())
    repaired = treadmill(age=timedelta(hours=1))
    assert refused(repaired, replace(daemon, release_host_ports=True)) == set()
    # A full range keeps it waiting as well.
    for last, waits in ((14, True), (13, False)):
        taken = [
            reservation(f"10.244.1.{n}", f"{n:064x}", age=100 * MINUTE - n * SECOND)
            for n in range(4, last + 1)
        ]
        snapshot = with_waiting_pod(
            node(*taken, node=[replace(WORKER, pod_cidrs=("10.244.1.0/28",))])
        )
        assert (Reason.PLUGIN_FAILING in refused(snapshot, daemon)) is waits
        assert bool(findings_of(FAILING, snapshot)) is waits
    # The advice about leaks begins with the plugin.
    repair = "Repair the CNI plugin that fails first"
    assert repair in " ".join(scan_table(scanned(treadmill())).split())
    assert repair not in " ".join(scan_table(scanned(node(reservation("10.244.1.99")))).split())
