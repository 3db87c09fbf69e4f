"""Metrics: closed names and labels, known zeros, and nothing for unknown values."""

import math
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from agent.app.daemon import MODES
from agent.checks import engine
from agent.checks.confirm import ConfirmationState
from agent.checks.registry import DETECTORS
from agent.exporters.metrics import CLEAN, MetricsExporter
from agent.kube_events.delivery import SENT, DeliveryMetrics, Failure, Kind, Message
from agent.kube_events.messages import REASONS
from agent.model import rejections
from agent.model.assessment import State
from agent.model.devices import TransitionKind
from agent.model.finding import Finding, LeakCause, Severity, SkippedCheck, TrackedFinding
from agent.model.rejections import PodOutcome, RejectedPod
from agent.model.release import MISSED, Cleaning, Reason, Refusal, Verdict
from agent.model.snapshot import SOURCES, NotRequested, Snapshot, Timing
from tests.builders import (
    GRACE,
    KVM,
    NOW,
    OLD,
    dark_node,
    device_plugins,
    empty_file,
    node,
    plugin_socket,
    processes,
    registered,
    reservation,
    transition,
    unavailable,
    unrecognized,
    without,
    without_api,
)
from tests.exporters.cleanings import BUDGET, CANDIDATE, DUAL, cleaning, many, outcome, refused, released

LOST = reservation("10.244.1.9")

CLOSED: Mapping[str, set[str]] = {
    "nodeleak_build_info": {"version", "commit", "python_version"},
    "nodeleak_mode_info": {"mode"},
    "nodeleak_reservations": {"network", "state"},
    "nodeleak_range_addresses": {"network"},
    "nodeleak_range_free_addresses": {"network"},
    "nodeleak_leaks_confirmed_total": {"network", "cause"},
    "nodeleak_findings": {"detector", "severity", "phase"},
    "nodeleak_oldest_finding_timestamp_seconds": {"detector"},
    "nodeleak_device_plugin_registered": {"resource"},
    "nodeleak_device_plugin_socket_present": {"resource"},
    "nodeleak_device_plugin_registration_delay_seconds": {"resource"},
    "nodeleak_rejected_pods": {"resource", "cause", "pod_outcome"},
    "nodeleak_kubelet_start_timestamp_seconds": set(),
    "nodeleak_source_up": {"source"},
    "nodeleak_source_last_read_timestamp_seconds": {"source"},
    "nodeleak_source_read_seconds_total": {"source"},
    "nodeleak_sync_seconds_count": set(),
    "nodeleak_sync_seconds_sum": set(),
    "nodeleak_sync_failures_total": {"stage"},
    "nodeleak_last_sync_timestamp_seconds": set(),
    "nodeleak_releases_total": {"network"},
    "nodeleak_releases_refused_total": {"network", "reason"},
    "nodeleak_release_failures_total": {"network", "reason"},
    "nodeleak_lock_wait_seconds_bucket": {"le"},
    "nodeleak_lock_wait_seconds_count": set(),
    "nodeleak_lock_wait_seconds_sum": set(),
    "nodeleak_lock_held_seconds_bucket": {"le"},
    "nodeleak_lock_held_seconds_count": set(),
    "nodeleak_lock_held_seconds_sum": set(),
    "nodeleak_journal_bytes": set(),
    "nodeleak_cleanup_halted": set(),
    "nodeleak_events_sent_total": {"reason"},
    "nodeleak_events_dropped_total": {"cause"},
    "nodeleak_node_condition_patches_total": {"result"},
    "nodeleak_watch_restarts_total": {"resource", "cause"},
    "nodeleak_watch_regressions_total": {"resource"},
}
"""Every sample of the agent, and its labels."""


class Stream:
    """A watch, as the exporter sees it."""

    source = "pods"
    restarts: Mapping[str, int] = {"ended": 3, "expired": 0}
    regressions = 1


class Daemon:
    """Syncs, and the scrape after them."""

    def __init__(self, *networks: str, mode: str = "observe", journal: int | None = None) -> None:
        self.registry = CollectorRegistry()
        self._exporter = MetricsExporter(
            self.registry, networks or ("kubenet",), mode, [Stream()], commit="577acf9", journal_size=lambda: journal
        )
        self.deliveries = DeliveryMetrics(self.registry)
        self._memory: ConfirmationState | None = None
        self._seconds = 0

    def sync(
        self,
        snapshot: Snapshot,
        gaps: tuple[SkippedCheck, ...] = (),
        cleaning: Cleaning | None = None,
        findings: tuple[TrackedFinding, ...] = (),
    ) -> "Daemon":
        self._seconds += 15
        later = timedelta(seconds=self._seconds)
        snapshot = replace(snapshot, taken_at=snapshot.taken_at + later, uptime=snapshot.uptime + later)
        report, self._memory = engine.run(snapshot, self._memory, grace=GRACE, confirm_after=timedelta(seconds=30))
        report = replace(report, gaps=(*report.gaps, *gaps), findings=(*report.findings, *findings), cleaning=cleaning)
        self._exporter.export(report, 0.02)
        return self

    def cleaned(self, one: Cleaning) -> "Daemon":
        return self.sync(node(LOST), cleaning=one)

    def syncs(self, count: int, snapshot: Snapshot) -> "Daemon":
        for _ in range(count):
            self.sync(snapshot)
        return self

    def scrape(self) -> str:
        return generate_latest(self.registry).decode()

    def get(self, sample: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"nodeleak_{sample}", labels)

    def total(self, name: str) -> float:
        families = (family.samples for family in self.registry.collect())
        return sum(one.value for samples in families for one in samples if one.name == f"nodeleak_{name}")

    def labels(self, name: str) -> list[dict[str, str]]:
        return [one.labels for family in self.registry.collect() for one in family.samples if one.name == name]


def everything() -> Daemon:
    """A daemon that has something to say under every name."""
    hour = timedelta(hours=1)
    devices = device_plugins(
        plugin_socket(ago=hour),
        registered(KVM, "kvm0"),
        transition(TransitionKind.KUBELET_STARTED, ago=hour),
        transition(TransitionKind.REGISTERED, KVM, ago=hour),
        kubelet_socket=hour,
        checkpoint_written=hour,
    )
    rejected_pods = RejectedPod(
        "shop/cart", "uid", "", KVM, NOW, rejections.RejectionCause.KUBELET_RESTART, PodOutcome.STUCK, "", ""
    )
    rejected = TrackedFinding(
        Finding("rejected_pod", "shop/cart", "refused", rejected_pods=(rejected_pods,)), NOW, confirmed=True
    )
    daemon = Daemon(mode=CLEAN, journal=4096)
    for kind in Kind:
        daemon.deliveries.failed(kind, Failure.UNREACHABLE)
        daemon.deliveries.sent(Message(kind, REASONS[0], lambda _: None))
    last = node(LOST, device_plugins=devices, mounts=unavailable("mounts"))
    return (
        daemon.syncs(3, node(LOST))
        .sync(dark_node())
        .sync(
            replace(last, timings=(Timing("containers", 0.03),)),
            cleaning=cleaning(released(), refused(BUDGET)),
            findings=(rejected,),
        )
    )


def test_names_and_labels_are_these_and_no_others() -> None:
    found: dict[str, set[str]] = {}
    for family in everything().registry.collect():
        for sample in family.samples:
            if sample.name.startswith("nodeleak_"):
                found.setdefault(sample.name, set()).update(sample.labels)
    assert found == CLOSED


def test_no_label_is_a_pod_an_address_or_an_id() -> None:
    closed = (
        {state.value for state in State} | {cause.value for cause in LeakCause} | {one.NAME for one in DETECTORS}
        | {reason.value for reason in Reason} | {verdict.value for verdict in MISSED}
        | {cause.value for cause in rejections.RejectionCause}
        | {pod_outcome.value for pod_outcome in PodOutcome} | {KVM}
        | {severity.value for severity in Severity}
        | set(REASONS) | set(Failure) | {SENT}
        | set(SOURCES) | {"kubenet", CLEAN, "candidate", "confirmed", "read", "check", "pods", "ended", "expired"}
    )  # fmt: skip
    found = {
        value
        for family in everything().registry.collect()
        for sample in family.samples
        for label, value in sample.labels.items()
        if sample.name.startswith("nodeleak_") and label not in {"le", "version", "commit", "python_version"}
    }
    assert found - closed == set()


def test_before_the_first_sync_only_metrics_without_a_snapshot_exist() -> None:
    daemon = Daemon()
    assert daemon.get("mode_info", mode="observe") == 1
    assert daemon.get("watch_restarts_total", resource="pods", cause="ended") == 3
    assert daemon.get("watch_regressions_total", resource="pods") == 1
    for name in ("reservations", "findings", "source_up", "last_sync_timestamp_seconds"):
        assert daemon.labels(f"nodeleak_{name}") == []


def test_a_healthy_node_has_zeros() -> None:
    daemon = Daemon("storage").sync(node())
    assert {state: daemon.get("reservations", network="kubenet", state=state.value) for state in State} == {
        state: 2 if state is State.IN_USE else 0 for state in State
    }
    assert daemon.labels("nodeleak_findings") == [
        {"detector": detector.NAME, "severity": severity.value, "phase": "confirmed"}
        for detector in DETECTORS
        for severity in detector.SEVERITIES
        if severity is not Severity.INFO
    ]
    assert daemon.total("findings") == 0
    for network in ("kubenet", "storage"):
        for cause in LeakCause:
            assert daemon.get("leaks_confirmed_total", network=network, cause=cause.value) == 0
    assert daemon.get("source_up", source="autoscaler") is None, "the node is registered, so it is not requested"
    for source in {*SOURCES} - {"autoscaler", "sandbox_failures"}:
        assert daemon.get("source_up", source=source) == 1
    for stage in ("read", "check"):
        assert daemon.get("sync_failures_total", stage=stage) == 0
    assert daemon.get("range_addresses", network="kubenet") == 253
    assert daemon.get("range_free_addresses", network="kubenet") == 251
    assert daemon.labels("nodeleak_oldest_finding_timestamp_seconds") == []


def test_a_counter_without_an_alert_is_absent_until_it_counts() -> None:
    daemon = Daemon().sync(node())
    for name in ("events_sent", "events_dropped", "node_condition_patches", "releases_refused"):
        assert daemon.labels(f"nodeleak_{name}_total") == [], name
    assert daemon.labels("nodeleak_watch_restarts_total") == [{"resource": "pods", "cause": "ended"}]
    daemon.deliveries.failed(Kind.EVENT, Failure.QUEUE_FULL, 3)
    assert daemon.get("events_dropped_total", cause="queue_full") == 3


def test_refusals_start_at_0_where_addresses_are_released() -> None:
    """The dashboard shows their increase by reason, which a series without a 0 hides once."""
    daemon = Daemon(mode=CLEAN).sync(node())
    assert {one["reason"] for one in daemon.labels("nodeleak_releases_refused_total")} == {*Reason}
    assert {daemon.get("releases_refused_total", network="kubenet", reason=one.value) for one in Reason} == {0}
    assert Daemon(mode="dry-run").sync(node()).labels("nodeleak_releases_refused_total") == []


def test_a_finding_of_severity_info_is_present_while_there_is_one() -> None:
    info = TrackedFinding(Finding("left_over_network", "cbr0", "left over", Severity.INFO), NOW, confirmed=True)
    daemon = Daemon().sync(node(), findings=(info,))
    assert daemon.get("findings", detector="left_over_network", severity="info", phase="confirmed") == 1
    daemon.sync(node())
    assert daemon.get("findings", detector="left_over_network", severity="info", phase="confirmed") is None


def test_the_build_names_version_and_commit() -> None:
    (build,) = Daemon().labels("nodeleak_build_info")
    assert (build["version"], build["commit"]) == (version("nodeleak"), "577acf9")


@pytest.mark.parametrize("size", [None, 4096])
def test_the_size_of_the_journal_is_present_where_there_is_one(size: int | None) -> None:
    assert Daemon(journal=size).sync(node()).get("journal_bytes") == size


def test_a_leak_is_a_candidate_reservation_until_it_is_a_confirmed_finding() -> None:
    daemon = Daemon()
    phases = []
    for _ in range(3):
        daemon.sync(node(LOST))
        phases.append(
            [
                daemon.get("findings", detector="leaked_reservation", severity="warning", phase=phase)
                for phase in _PHASES
            ]
        )
    assert phases == [[None, 0], [None, 0], [None, 1]]
    assert daemon.get("reservations", network="kubenet", state="leaked") == 1
    assert oldest(daemon) == (NOW - OLD).timestamp()


_PHASES = ("candidate", "confirmed")


def oldest(daemon: Daemon, detector: str = "leaked_reservation") -> float | None:
    return daemon.get("oldest_finding_timestamp_seconds", detector=detector)


def test_the_oldest_of_several_leaks_is_exported_and_none_without_leaks() -> None:
    younger = reservation("10.244.1.10", "8" * 64, age=OLD / 2)
    daemon = Daemon().syncs(3, node(LOST, younger))
    assert oldest(daemon) == (NOW - OLD).timestamp()
    assert oldest(daemon.sync(node(younger))) == (NOW - OLD / 2).timestamp()
    assert oldest(daemon.sync(node())) is None


def test_only_confirmed_findings_have_an_age() -> None:
    teardown = Finding("stuck_teardown", "10.244.1.9", "pending")
    waiting = TrackedFinding(teardown, NOW - OLD, confirmed=False)
    since = TrackedFinding(replace(teardown, subject="10.244.1.8"), NOW, confirmed=True)
    assert oldest(Daemon().sync(node(), findings=(waiting, since)), "stuck_teardown") == NOW.timestamp()


# Confirmed leaks are counted once


def counted(daemon: Daemon, cause: LeakCause = LeakCause.UNKNOWN) -> float | None:
    return daemon.get("leaks_confirmed_total", network="kubenet", cause=cause.value)


def test_a_leak_is_counted_when_it_is_confirmed_and_once() -> None:
    daemon = Daemon()
    assert [counted(daemon.sync(node(LOST))) for _ in range(6)] == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("source", ["reservations", "containers", "checkpoints", "addresses", "pods"])
def test_a_leak_is_counted_once_even_across_a_gap(source: str) -> None:
    daemon = Daemon().syncs(3, node(LOST)).syncs(4, without(node(LOST), source)).syncs(4, node(LOST))
    assert counted(daemon) == 1


def test_a_leak_after_a_release_is_counted_again() -> None:
    daemon = Daemon().syncs(3, node(LOST)).sync(node()).syncs(3, node(LOST))
    assert counted(daemon) == 2


def test_each_cause_has_its_counter() -> None:
    snapshot = node(LOST, empty_file("10.244.1.10"), processes=[processes(kubelet=OLD / 2)])
    daemon = Daemon().syncs(3, snapshot)
    expected = dict.fromkeys(LeakCause, 0) | {LeakCause.KUBELET_RESTART: 1, LeakCause.EMPTY_FILE: 1}
    assert {cause: counted(daemon, cause) for cause in LeakCause} == expected


def test_a_restart_that_comes_later_counts_nothing_again() -> None:
    daemon = Daemon().syncs(3, node(LOST)).syncs(3, node(LOST, processes=[processes(kubelet=timedelta(0))]))
    expected = dict.fromkeys(LeakCause, 0) | {LeakCause.UNKNOWN: 1}
    assert {cause: counted(daemon, cause) for cause in LeakCause} == expected


# Releases


def test_release_counters_start_with_zeros() -> None:
    daemon = Daemon("kubenet", "storage", mode=CLEAN)
    for network in ("kubenet", "storage"):
        assert daemon.get("releases_total", network=network) == 0
        for verdict in MISSED:
            assert daemon.get("release_failures_total", network=network, reason=verdict.value) == 0
    assert daemon.get("lock_wait_seconds_count") == daemon.get("lock_held_seconds_count") == 0


@pytest.mark.parametrize("mode", ["observe", "dry-run"])
def test_where_nothing_is_released_there_are_no_metrics_of_releases(mode: str) -> None:
    text = Daemon(mode=mode).sync(node(), cleaning=cleaning(outcome(Verdict.WOULD_RELEASE), applied=False)).scrape()
    assert [name for name in ("releases_total", "release_failures", "lock_wait", "lock_held") if name in text] == []


def test_a_dry_run_counts_what_would_be_refused() -> None:
    daemon = Daemon(mode="dry-run").cleaned(cleaning(refused(CANDIDATE), applied=False))
    assert daemon.get("releases_refused_total", network="kubenet", reason="not_confirmed") == 1


def test_a_release_counts_addresses_and_one_lock() -> None:
    daemon = Daemon(mode=CLEAN).cleaned(cleaning(released(*DUAL, waited=0.003, held=0.0007)))
    assert daemon.get("releases_total", network="kubenet") == 2
    assert daemon.get("lock_wait_seconds_count") == daemon.get("lock_held_seconds_count") == 1
    assert (daemon.get("lock_wait_seconds_bucket", le="0.001"), daemon.get("lock_wait_seconds_bucket", le="0.005")) == (
        0,
        1,
    )
    assert (
        daemon.get("lock_held_seconds_bucket", le="0.0005"),
        daemon.get("lock_held_seconds_bucket", le="0.001"),
    ) == (
        0,
        1,
    )


def test_the_lock_buckets_cover_delays_that_pods_notice() -> None:
    bounds = [labels["le"] for labels in Daemon(mode=CLEAN).labels("nodeleak_lock_held_seconds_bucket")]
    waited = [labels["le"] for labels in Daemon(mode=CLEAN).labels("nodeleak_lock_wait_seconds_bucket")]
    assert (bounds[0], bounds[-2], waited[0], waited[-2]) == ("0.0001", "0.1", "0.001", "10.0")
    assert "0.002" in bounds


def test_a_refusal_counts_once_per_sync_by_its_first_reason() -> None:
    daemon = Daemon(mode=CLEAN)
    for _ in range(3):
        daemon.cleaned(cleaning(refused(CANDIDATE, BUDGET), *(refused(BUDGET, of=(one,)) for one in many(5))))
    assert daemon.get("releases_refused_total", network="kubenet", reason="not_confirmed") == 3
    assert daemon.get("releases_refused_total", network="kubenet", reason="over_budget") == 15
    assert daemon.get("releases_total", network="kubenet") == 0


@pytest.mark.parametrize("verdict", MISSED)
def test_a_failed_release_is_counted_by_its_reason(verdict: Verdict) -> None:
    daemon = Daemon(mode=CLEAN).cleaned(cleaning(outcome(verdict, why="it is another", waited=0.2)))
    assert {one: daemon.get("release_failures_total", network="kubenet", reason=one.value) for one in MISSED} == {
        one: int(one is verdict) for one in MISSED
    }
    assert daemon.get("releases_total", network="kubenet") == 0
    assert (daemon.get("lock_wait_seconds_count"), daemon.get("lock_held_seconds_count")) == (1, 0)


def test_the_halted_gauge_exists_only_with_cleanup_on() -> None:
    daemon = Daemon().sync(node())
    assert daemon.get("cleanup_halted") is None
    assert daemon.cleaned(cleaning()).get("cleanup_halted") == 0
    assert daemon.cleaned(cleaning(halted="it is there again")).get("cleanup_halted") == 1


def test_the_mode_of_automatic_cleanup_has_metrics_of_releases() -> None:
    assert MODES["auto"] == CLEAN


def test_a_refusal_after_the_lock_has_its_lock_times() -> None:
    daemon = Daemon(mode=CLEAN).cleaned(cleaning(replace(refused(BUDGET), waited=0.2, held=0.001)))
    assert daemon.get("lock_wait_seconds_count") == daemon.get("lock_held_seconds_count") == 1
    assert daemon.total("release_failures_total") == 0


def test_a_refusal_of_the_recheck_counts_under_its_reason() -> None:
    exists = Refusal(Reason.CONTAINER_EXISTS, "docker has its container")
    daemon = Daemon("storage").cleaned(cleaning(refused(exists, of=(reservation("10.9.0.2", network="storage"),))))
    assert daemon.get("releases_refused_total", network="storage", reason="container_exists") == 1


# Missing data is absent


def test_an_unknown_value_is_absent_and_not_zero() -> None:
    daemon = Daemon().syncs(3, node(LOST)).sync(dark_node())
    for name in (
        "reservations",
        "range_addresses",
        "range_free_addresses",
        "oldest_finding_timestamp_seconds",
        "findings",
    ):
        assert daemon.labels(f"nodeleak_{name}") == [], name
    assert counted(daemon) == 1, "what was counted stays counted"
    for source in SOURCES:
        assert daemon.get("source_up", source=source) == 0


def test_a_detector_that_could_not_run_is_absent() -> None:
    daemon = Daemon().sync(without_api(node()))
    present = {labels["detector"] for labels in daemon.labels("nodeleak_findings")}
    assert present == {
        "leaked_reservation", "unmanaged_address", "stuck_teardown", "exhausted_range", "overlapping_ranges",
        "failing_plugin", "unexplained_exhaustion", "late_device_plugin",
    }  # fmt: skip


def test_a_failed_detector_is_absent_and_counted() -> None:
    daemon = Daemon().sync(node(), (SkippedCheck("shared_ip", "KeyError", broken=True),))
    assert daemon.get("findings", detector="shared_ip", severity="critical", phase="confirmed") is None
    assert daemon.get("sync_failures_total", stage="check") == 1
    assert daemon.get("sync_failures_total", stage="read") == 0


def test_a_disabled_source_is_neither_up_nor_down() -> None:
    daemon = Daemon().sync(node(addresses=NotRequested("addresses", "nobody needed them")))
    assert daemon.get("source_up", source="addresses") is None
    assert daemon.get("source_up", source="containers") == 1


def test_an_unavailable_source_is_down_with_its_last_reading() -> None:
    daemon = Daemon().sync(node())
    assert daemon.labels("nodeleak_source_last_read_timestamp_seconds") == []
    daemon.sync(without(node(), "containers"))
    assert daemon.get("source_up", source="containers") == 0
    spoke = (NOW + timedelta(seconds=15)).timestamp()
    assert daemon.get("source_last_read_timestamp_seconds", source="containers") == spoke
    assert daemon.labels("nodeleak_source_last_read_timestamp_seconds") == [{"source": "containers"}]
    assert daemon.get("sync_failures_total", stage="read") == 1


def test_one_unavailable_network_takes_the_source_down_and_keeps_the_other_numbers() -> None:
    daemon = Daemon("kubenet", "storage").sync(node(unread_networks=["storage"]))
    assert daemon.get("source_up", source="reservations") == 0
    assert daemon.get("reservations", network="kubenet", state="in_use") == 2
    assert daemon.get("reservations", network="storage", state="in_use") is None


def test_unrecognized_entries_are_counted() -> None:
    daemon = Daemon().sync(node(unrecognized("notes"), unrecognized("10.244.1.9", blocks=True)))
    assert daemon.get("reservations", network="kubenet", state="unrecognized") == 2
    assert daemon.get("range_free_addresses", network="kubenet") == 250


# Times


def test_times_of_syncs_and_readings_are_added_up() -> None:
    timed = replace(node(), timings=(Timing("containers", 0.03), Timing("containers", 0.3)))
    daemon = Daemon().syncs(2, timed)
    assert (daemon.get("sync_seconds_count"), daemon.get("sync_seconds_sum")) == (2, 0.04)
    assert math.isclose(daemon.get("source_read_seconds_total", source="containers") or 0, 0.66)
    assert daemon.get("last_sync_timestamp_seconds") == (NOW + timedelta(seconds=30)).timestamp()


def test_a_source_that_is_not_requested_has_no_time() -> None:
    idle = NotRequested("autoscaler", "the node is registered")
    daemon = Daemon().sync(replace(node(), autoscaler=idle, timings=(Timing("autoscaler", 0.001),)))
    assert daemon.labels("nodeleak_source_read_seconds_total") == []


# The text


@pytest.mark.parametrize("daemon", [Daemon(), everything(), Daemon().sync(dark_node())], ids=["new", "sick", "dark"])
def test_the_text_can_be_parsed_and_holds_each_sample_once(daemon: Daemon) -> None:
    families = list(text_string_to_metric_families(daemon.scrape()))
    samples = [(one.name, *sorted(one.labels.items())) for family in families for one in family.samples]
    assert len(samples) == len(set(samples)) > 10
    assert all(family.documentation and family.type != "unknown" for family in families)


def test_no_series_has_a_creation_time() -> None:
    assert "_created" not in everything().scrape()


def test_process_metrics_are_these() -> None:
    found = {family.name for family in Daemon().registry.collect() if family.name.startswith("process_")}
    assert found == {
        "process_cpu_seconds", "process_resident_memory_bytes", "process_start_time_seconds", "process_open_fds",
    }  # fmt: skip


def test_promtool_accepts_them() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("DID NOT RUN: it needs promtool (Debian: apt-get install prometheus); nobody checked the metrics")
    checked = subprocess.run(  # noqa: S603 (a program of the machine's own)
        [promtool, "check", "metrics"], input=everything().scrape(), capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
