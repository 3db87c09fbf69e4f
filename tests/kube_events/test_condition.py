"""The node's condition: from `exhausted_range`, patched when it changes and every five minutes."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from prometheus_client import CollectorRegistry

from agent.checks import engine
from agent.checks.addresses import exhausted_range
from agent.kube_events.condition import AVAILABLE, EXHAUSTED, SCARCE, UNKNOWN, Condition, ConditionExporter
from agent.kube_events.condition import condition as condition_of
from agent.kube_events.delivery import DeliveryMetrics, DeliveryQueue, Kind, Message
from agent.kube_events.writer import Writer
from agent.model.finding import Finding, SkippedCheck
from agent.model.report import Report
from agent.model.snapshot import NetworkStore, Node, NotRequested, Snapshot
from tests.builders import GRACE, node, reservation, without
from tests.kube_events.syncs import Syncs, confirmed
from tests.strategies import nodes

TINY = Node("worker-1", ("10.244.1.0/29",), 6)
"""Five addresses for at most five pods with one; the pods have two."""
FULL = tuple(reservation(f"10.244.1.{n}") for n in (4, 5, 6))
SMALLER = node(FULL[0], node=[TINY])
"""A leak takes the address of a pod that may come."""
WIDE = Node("worker-1", ("10.244.1.0/24",), 110)


def after(snapshot: Snapshot, syncs: int) -> Condition | None:
    export_all = Syncs()
    (*_, last) = [condition_of(export_all.report(snapshot)) for _ in range(syncs)]
    return last


def test_the_condition_of_a_node() -> None:
    no_range = node(node=[], cni_results=[], reservations=[])
    for snapshot, syncs, status, reason, message in (
        (node(), 1, "False", AVAILABLE, "kubenet: 251 of 253 addresses are free"),
        (node(), 3, "False", AVAILABLE, "kubenet: 251 of 253 addresses are free"),
        # A range smaller than the pod limit is no pressure.
        (node(node=[replace(TINY, max_pods=110)]), 3, "False", AVAILABLE, "kubenet: 3 of 5 addresses are free"),
        (no_range, 3, "False", AVAILABLE, "kubenet: no address is reserved"),
        (SMALLER, 3, "True", SCARCE, "kubenet: 2 free addresses for 3 more pods"),
        (node(*FULL, node=[TINY]), 3, "True", EXHAUSTED, "kubenet: no free addresses"),
        *((without(node(), source), 3, "Unknown", UNKNOWN, "") for source in ("reservations", "node", "pods")),
    ):
        condition = after(snapshot, syncs)
        assert condition is not None
        assert (condition.status, condition.reason) == (status, reason)
        assert condition.message.startswith(message)
        assert condition.message
    assert after(SMALLER, 1) is None, "a candidate leaves the condition as it is"


def test_a_node_without_kubenet_gets_no_condition_and_keeps_no_old_status() -> None:
    why = NotRequested("reservations", "no kubenet on this node: its runtime is containerd://1.6.4")
    for stored, status in (("", None), ("True", "Unknown")):
        elsewhere = replace(WIDE, runtime="containerd://1.6.4", address_pressure=stored)
        condition = after(replace(node(node=[elsewhere]), reservations=(NetworkStore("kubenet", why),)), 3)
        assert (condition.status if condition else None) == status


def test_a_full_network_is_reported_though_another_is_unavailable() -> None:
    report = confirmed(Finding(exhausted_range.NAME, "kubenet", "full", network="kubenet"))
    condition = condition_of(replace(report, gaps=(SkippedCheck(exhausted_range.NAME, "storage: unread"),)))
    assert condition is not None
    assert condition.status == "True"


@given(nodes())
def test_the_status_is_never_false_without_data(snapshot: Snapshot) -> None:
    report = engine.replay((snapshot, snapshot), grace=GRACE, confirm_after=timedelta(0))
    condition = condition_of(report)
    full = [tracked for tracked in report.findings if tracked.finding.detector == exhausted_range.NAME]
    findings = [tracked for tracked in full if tracked in report.problems]
    has_gap = exhausted_range.NAME in {gap.detector for gap in report.gaps}
    assert condition is not None
    assert (condition.status == "True") == bool(findings)
    assert (condition.status == "False") == (not findings and not has_gap)


class Patches(Writer):
    """Keeps the conditions."""

    def __init__(self) -> None:
        super().__init__(None, 1)
        self.sent: list[dict[str, Any]] = []

    def patch(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        assert path == "/api/v1/nodes/worker-1/status"
        self.sent += body["status"]["conditions"]
        return {}


class Queue(DeliveryQueue):
    """Delivers at once."""

    def __init__(self) -> None:
        self.writer = Patches()
        super().__init__(self.writer, DeliveryMetrics(CollectorRegistry()), lambda *_: None)

    def put(self, message: Message) -> None:
        assert message.kind is Kind.CONDITION
        message.send(self.writer)


def export_all(exporter: ConditionExporter, *reports: Report) -> None:
    for report in reports:
        exporter.export(report, 0.1)


def test_the_condition_is_patched_at_first_and_then_every_five_minutes() -> None:
    queue, syncs = Queue(), Syncs()
    exporter = ConditionExporter(queue)
    for number in range(41):
        export_all(exporter, syncs.report(without(node(), "node", "pods") if number == 30 else node()))
    reasons = [condition["reason"] for condition in queue.writer.sent]
    assert reasons == [AVAILABLE, AVAILABLE, UNKNOWN, AVAILABLE]
    assert queue.writer.sent[-1]["type"] == "CNIAddressPressure"


def test_a_change_is_patched_at_once_with_its_transition_time() -> None:
    queue, syncs = Queue(), Syncs()
    exporter = ConditionExporter(queue)
    export_all(exporter, syncs.report(node()))
    assert (
        queue.writer.sent[-1]["lastTransitionTime"]
        == queue.writer.sent[-1]["lastHeartbeatTime"]
        == "2026-03-26T20:00:15Z"
    )
    stored = replace(TINY, address_pressure="False")
    export_all(exporter, *(syncs.report(node(FULL[0], node=[stored])) for _ in range(3)))
    assert len(queue.writer.sent) == 2
    assert (queue.writer.sent[-1]["status"], queue.writer.sent[-1]["lastTransitionTime"]) == (
        "True",
        "2026-03-26T20:01:00Z",
    )
    # Scarce becomes exhausted: patched at once, without a transition.
    stored = replace(TINY, address_pressure="True")
    export_all(exporter, syncs.report(node(*FULL, node=[stored])))
    assert len(queue.writer.sent) == 3
    assert queue.writer.sent[-1]["reason"] == EXHAUSTED
    assert "lastTransitionTime" not in queue.writer.sent[-1]


def test_a_restarted_agent_takes_the_status_from_the_node_object() -> None:
    for stored, turned in (("False", False), ("True", True), ("Unknown", True), ("", True)):
        queue = Queue()
        healthy = node(node=[replace(WIDE, address_pressure=stored)])
        export_all(ConditionExporter(queue), Syncs().report(healthy))
        assert ("lastTransitionTime" in queue.writer.sent[-1]) == turned, stored


def test_an_unavailable_node_object_is_not_one_without_the_condition() -> None:
    queue, syncs = Queue(), Syncs()
    exporter = ConditionExporter(queue)
    export_all(
        exporter, syncs.report(without(node(), "node")), syncs.report(without(node(), "node"), timedelta(hours=1))
    )
    assert ["lastTransitionTime" in condition for condition in queue.writer.sent] == [True, False]
