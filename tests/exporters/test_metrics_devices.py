"""Metrics of device plugins: a bounded number of resources, and nothing for unknown values."""

from dataclasses import replace
from datetime import timedelta

import pytest
from prometheus_client import CollectorRegistry

from agent.exporters.metrics import MetricsExporter
from agent.exporters.metrics_devices import MOST_RESOURCES
from agent.model.devices import TransitionKind
from agent.model.finding import Finding, TrackedFinding
from agent.model.rejections import PodOutcome, RejectedPod, RejectionCause
from agent.model.report import Report
from agent.model.snapshot import NotRequested, Snapshot
from tests.builders import (
    KVM,
    KVM_SOCKET,
    NOW,
    device_plugins,
    node,
    plugin_socket,
    processes,
    registered,
    scanned,
    transition,
    unavailable,
    without,
)

HOUR = timedelta(hours=1)
LATE = timedelta(seconds=9.5)
FAMILIES = ("registered", "registration_delay_seconds", "socket_present")


class Scrape:
    """The samples of one scrape after a sync."""

    def __init__(self, report: Report) -> None:
        self._registry = CollectorRegistry()
        MetricsExporter(self._registry, ("kubenet",), "observe", ()).export(report, 0.02)

    def get(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(f"nodeleak_{name}", labels)

    def resources(self, name: str) -> list[str]:
        families = (family.samples for family in self._registry.collect())
        return [one.labels["resource"] for samples in families for one in samples if one.name == f"nodeleak_{name}"]


def scrape(snapshot: Snapshot, *rejected_pods: RejectedPod) -> Scrape:
    return Scrape(telling(scanned(snapshot), *rejected_pods))


def telling(report: Report, *rejected_pods: RejectedPod, confirmed: bool = True) -> Report:
    """Add a finding that stands for these pods."""
    finding = Finding("rejected_pod", "pods", "refused", rejected_pods=rejected_pods)
    return replace(report, findings=(TrackedFinding(finding, NOW, confirmed),))


def pod(
    resource: str = KVM,
    cause: RejectionCause = RejectionCause.KUBELET_RESTART,
    pod_outcome: PodOutcome = PodOutcome.STUCK,
) -> RejectedPod:
    return RejectedPod("shop/render", "uid", "", resource, NOW, cause, pod_outcome, "", "")


def racing() -> Snapshot:
    """The kubelet started an hour ago; the plugin came 9.5 s later."""
    return node(
        device_plugins=device_plugins(
            plugin_socket(ago=HOUR - LATE),
            registered(KVM, "kvm0", "kvm1"),
            transition(TransitionKind.KUBELET_STARTED, ago=HOUR),
            transition(TransitionKind.SOCKET_APPEARED, socket=KVM_SOCKET, ago=HOUR - LATE),
            transition(TransitionKind.REGISTERED, KVM, ago=HOUR - LATE),
            kubelet_socket=HOUR,
            checkpoint_written=HOUR - LATE,
        )
    )


def many(count: int) -> Snapshot:
    names = [f"vendor.io/device-{n:03}" for n in range(count)]
    return node(
        device_plugins=device_plugins(
            *(registered(name, "d0") for name in names),
            transition(TransitionKind.KUBELET_STARTED, ago=HOUR),
            *(
                transition(TransitionKind.REGISTERED, name, ago=HOUR - timedelta(seconds=n))
                for n, name in enumerate(names)
            ),
            kubelet_socket=HOUR,
            checkpoint_written=HOUR - LATE,
        )
    )


def test_a_resource_that_is_registered_is_one_with_its_delay() -> None:
    metrics = scrape(racing())
    assert metrics.get("device_plugin_registered", resource=KVM) == 1
    assert metrics.get("device_plugin_socket_present", resource=KVM) == 1
    assert metrics.get("device_plugin_registration_delay_seconds", resource=KVM) == 9.5


def test_a_resource_that_is_not_registered_again_is_zero_and_has_no_delay() -> None:
    metrics = scrape(node(device_plugins=device_plugins(registered(KVM), kubelet_socket=HOUR)))
    assert metrics.get("device_plugin_registered", resource=KVM) == 0
    assert metrics.get("device_plugin_registration_delay_seconds", resource=KVM) is None


def test_an_unclaimed_socket_is_absent() -> None:
    assert scrape(many(3)).resources("device_plugin_socket_present") == []


@pytest.mark.parametrize("reading", [unavailable("device_plugins"), NotRequested("device_plugins", "off")])
def test_unavailable_values_are_absent(reading: NotRequested) -> None:
    metrics = scrape(node(device_plugins=reading))
    assert [metrics.resources(f"device_plugin_{name}") for name in FAMILIES] == [[], [], []]


def test_a_hundred_resources_are_bounded_and_the_rest_is_other() -> None:
    metrics = scrape(many(100))
    names = metrics.resources("device_plugin_registered")
    assert names == [*(f"vendor.io/device-{n:03}" for n in range(MOST_RESOURCES)), "other"]
    assert metrics.get("device_plugin_registered", resource="other") == 1
    assert metrics.get("device_plugin_registration_delay_seconds", resource="other") == 99


def test_other_is_zero_when_one_of_them_is() -> None:
    snapshot = many(99)
    devices = snapshot.device_plugins.known()
    devices = replace(devices, registered=(*devices.registered, registered("vendor.io/z")))
    assert scrape(node(device_plugins=devices)).get("device_plugin_registered", resource="other") == 0


@pytest.mark.parametrize(
    "odd",
    ["no-slash", "a.b/c\nd", 'a.b/"x"', "a.b/" + "x" * 64, "x" * 254 + "/y", "a/b/c", "vendor.io/\u00fc", "a.b/c\n"],
)
def test_an_invalid_name_is_other(odd: str) -> None:
    metrics = scrape(node(device_plugins=device_plugins(registered(odd))))
    assert metrics.resources("device_plugin_registered") == ["other"]


def test_the_longest_valid_name_has_its_label() -> None:
    name = "x" * 253 + "/" + "y" * 63
    assert scrape(node(device_plugins=device_plugins(registered(name)))).resources("device_plugin_registered") == [name]


def test_rejected_pods_are_counted_by_resource_cause_and_outcome() -> None:
    gone = pod(pod_outcome=PodOutcome.REPLACED_BY_CONTROLLER)
    metrics = scrape(racing(), pod(), pod(), gone, pod(cause=RejectionCause.EXHAUSTED))
    about = {"resource": KVM, "cause": "kubelet_restart"}
    assert metrics.get("rejected_pods", **about, pod_outcome="stuck") == 2
    assert metrics.get("rejected_pods", **about, pod_outcome="replaced_by_controller") == 1
    assert metrics.get("rejected_pods", resource=KVM, cause="exhausted", pod_outcome="stuck") == 1
    assert len(metrics.resources("rejected_pods")) == 3


def test_a_candidate_is_not_counted() -> None:
    assert Scrape(telling(scanned(racing()), pod(), confirmed=False)).resources("rejected_pods") == []


def test_a_healthy_node_has_no_series_of_rejected_pods() -> None:
    assert scrape(racing()).resources("rejected_pods") == []


def test_a_pod_that_names_no_resource_is_counted_as_unknown() -> None:
    about = {"cause": "kubelet_restart", "pod_outcome": "stuck"}
    assert scrape(node(), pod("")).get("rejected_pods", resource="unknown", **about) == 1


def test_pods_and_plugins_share_the_bound() -> None:
    metrics = scrape(many(30), *(pod(f"a.io/x-{n:03}") for n in range(100)))
    labels = {*metrics.resources("device_plugin_registered"), *metrics.resources("rejected_pods")}
    assert len(labels) == MOST_RESOURCES + 1
    assert metrics.get("rejected_pods", resource="other", cause="kubelet_restart", pod_outcome="stuck") == 68


def test_the_start_of_the_kubelet_is_that_of_its_process() -> None:
    snapshot = node(processes=[processes(kubelet=HOUR)], device_plugins=device_plugins(kubelet_socket=HOUR - LATE))
    assert scrape(snapshot).get("kubelet_start_timestamp_seconds") == (NOW - HOUR).timestamp()


def test_without_the_process_table_it_is_that_of_its_socket() -> None:
    snapshot = without(node(device_plugins=device_plugins(kubelet_socket=HOUR)), "processes")
    assert scrape(snapshot).get("kubelet_start_timestamp_seconds") == (NOW - HOUR).timestamp()


def test_an_unknown_start_is_absent() -> None:
    assert scrape(without(node(), "processes", "device_plugins")).get("kubelet_start_timestamp_seconds") is None
