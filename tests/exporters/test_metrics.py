"""Metrics: closed names and labels, known zeros, and nothing for unknown values."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.checks.registry import DETECTORS
from agent.exporters.metrics import COUNTED, OF_AGENT, OF_SYNC, Metric
from agent.kube_events.delivery import Failure, Kind, Message
from agent.model.devices import TransitionKind
from agent.model.finding import Finding, LeakCause, Severity, SkippedCheck, TrackedFinding
from agent.model.node_network import RuntimeStatus
from agent.model.rejections import PodOutcome, RejectedPod, RejectionCause
from agent.model.release import Cleaning, Reason, Refusal, Verdict
from agent.model.snapshot import Known, Reservation, Snapshot
from tests import builders as b
from tests.builders import NOW, node, reservation, without
from tests.exporters import cleanings as c
from tests.exporters.cleanings import cleaning, refused
from tests.exporters.daemon import Daemon
from tests.wire import needs, run

LOST = reservation("10.244.1.9")


def rejected(*resources: str) -> TrackedFinding:
    stuck = RejectionCause.KUBELET_RESTART, PodOutcome.STUCK, "", ""
    pods = tuple(
        RejectedPod("shop/cart", "uid", "", resource, NOW, *stuck) for resource in resources
    )
    return TrackedFinding(
        Finding("rejected_pod", "shop/cart", "refused", rejected_pods=pods), NOW, confirmed=True
    )


def everything() -> Daemon:
    """A daemon that has something to say under every name."""
    hour = timedelta(hours=1)
    devices = b.device_plugins(
        b.plugin_socket(ago=hour),
        b.registered(b.KVM, "kvm0"),
        b.transition(TransitionKind.KUBELET_STARTED, ago=hour),
        b.transition(TransitionKind.REGISTERED, b.KVM, ago=hour),
        kubelet_socket=hour,
        checkpoint_written=hour,
    )
    daemon = Daemon(mode="clean", journal_size=lambda: 4096)
    for kind in Kind:
        daemon.deliveries.failed(kind, Failure.UNREACHABLE)
        daemon.deliveries.sent(Message(kind, "LeakedReservation", lambda _: None))
    last = b.with_waiting_pod(node(LOST, device_plugins=devices, mounts=b.unavailable("mounts")))
    return (
        daemon.syncs(3, node(LOST))
        .sync(b.dark_node())
        .sync(
            replace(last, timings=(("containers", 0.03),)),
            cleaning=cleaning(c.released(), refused(c.BUDGET)),
            findings=(rejected(b.KVM),),
        )
    )


def cleaned(done: Cleaning, mode: str = "clean") -> Daemon:
    return Daemon(mode=mode).sync(node(LOST), cleaning=done)


def test_what_would_be_released_is_exported_where_it_is_known() -> None:
    def releasable(done: Cleaning, mode: str = "clean") -> float | None:
        return cleaned(done, mode).get("releasable_addresses", network="kubenet")

    assert releasable(cleaning(refused(c.BUDGET)), "dry-run") == 1
    assert releasable(cleaning(c.released())) == 0
    unread = replace(cleaning(refused(c.BUDGET)), unavailable=(b.unavailable("pods"),))
    assert releasable(unread) is None
    assert Daemon().sync(node(LOST)).labels("releasable_addresses") == [], "it only observes"


def test_the_oldest_confirmed_finding_of_a_detector_is_exported_and_none_without() -> None:
    def oldest(daemon: Daemon, detector: str = "leaked_reservation") -> float | None:
        return daemon.get("oldest_finding_timestamp_seconds", detector=detector)

    younger = reservation("10.244.1.10", "8" * 64, age=b.OLD / 2)
    daemon = Daemon().syncs(3, node(LOST, younger))
    assert oldest(daemon) == (NOW - b.OLD).timestamp()
    assert oldest(daemon.sync(node(younger))) == (NOW - b.OLD / 2).timestamp()
    assert oldest(daemon.sync(node())) is None
    teardown = Finding("stuck_teardown", "10.244.1.9", "pending")
    waiting = TrackedFinding(teardown, NOW - b.OLD, confirmed=False)
    since = TrackedFinding(replace(teardown, subject="10.244.1.8"), NOW, confirmed=True)
    assert (
        oldest(Daemon().sync(node(), findings=(waiting, since)), "stuck_teardown")
        == NOW.timestamp()
    )


def counted(daemon: Daemon, cause: LeakCause = LeakCause.UNKNOWN) -> float | None:
    return daemon.get("leaks_confirmed_total", network="kubenet", cause=cause.value)


def test_pods_that_wait_are_counted_by_what_stops_them() -> None:
    waits = b.with_waiting_pod(node())
    daemon = Daemon().syncs(2, replace(waits, sandbox_failures=Known(())))
    assert daemon.get("waiting_pods", cause="unexplained") == 1
    assert Daemon().sync(node()).labels("waiting_pods") == []
    # What is found beside a gap counts: the network is not ready, and pods are not known.
    status = RuntimeStatus(network_ready=False, reason="NetworkPluginNotReady")
    alone = replace(b.without_api(node()), runtime_status=Known(status))
    findings = Daemon().syncs(3, alone)
    labels = {"detector": "waiting_pods", "severity": "warning", "phase": "confirmed"}
    assert findings.get("findings", **labels) == 1
    assert findings.labels("waiting_pods") == []


def test_a_leak_is_counted_when_it_is_confirmed_and_once_even_across_a_gap() -> None:
    daemon = Daemon()
    assert [counted(daemon.sync(node(LOST))) for _ in range(4)] == [0, 0, 1, 1]
    for source in ("reservations", "containers", "checkpoints", "addresses", "pods"):
        assert counted(daemon.syncs(3, without(node(LOST), source)).syncs(3, node(LOST))) == 1
    assert counted(daemon.syncs(3, node(LOST, processes=[b.processes(kubelet=timedelta(0))]))) == 1
    assert counted(daemon.sync(node()).syncs(3, node(LOST))) == 2, "after a release"


MISSED = ("changed", "gone", "busy", "interrupted", "failed")


def in_use(network: str) -> Reservation:
    return reservation("10.244.1.2", b.WEB_ID, network=network)


def test_counters_of_a_network_start_with_zeros_when_it_first_has_a_suspect() -> None:
    """So that their first increase is seen: a leak is a candidate before it is confirmed, refused or released."""
    quiet = in_use("quiet"), in_use("storage")
    daemon = Daemon(mode="clean").sync(node(*quiet))
    counters = ("leaks_confirmed_total", "releases_total", "release_failures_total")
    for name in (*counters, "releases_refused_total"):
        assert daemon.labels(name) == [], name
    daemon.sync(node(*quiet, replace(LOST, network="storage")))
    assert daemon.get("reservations", network="storage", state="candidate") == 1
    for name in (*counters, "releases_refused_total"):
        assert {one["network"] for one in daemon.labels(name)} == {"storage"}, name
    assert {
        daemon.get("leaks_confirmed_total", network="storage", cause=cause.value)
        for cause in LeakCause
    } == {0}
    assert daemon.get("releases_total", network="storage") == 0
    failures = {
        reason: daemon.get("release_failures_total", network="storage", reason=reason)
        for reason in MISSED
    }
    assert failures == dict.fromkeys(MISSED, 0)
    # The dashboard shows their increase by reason, which a series without a 0 hides once.
    refusals = {
        daemon.get("releases_refused_total", network="storage", reason=reason.value)
        for reason in Reason
    }
    assert refusals == {0}
    daemon.sync(node(*quiet))
    assert daemon.get("releases_total", network="storage") == 0, "a counter does not end"
    assert daemon.get("lock_wait_seconds_count") == daemon.get("lock_held_seconds_count") == 0
    for mode in ("observe", "dry-run"):
        text = cleaned(cleaning(c.outcome(Verdict.WOULD_RELEASE), dry_run=True), mode=mode).scrape()
        assert [
            name
            for name in ("releases_total", "release_failures", "lock_wait", "lock_held")
            if name in text
        ] == []
        assert Daemon(mode=mode).sync(node(LOST)).labels("releases_refused_total") == []


def test_a_node_with_a_hundred_networks_has_few_series() -> None:
    names = [f"tenant-{number:02}" for number in range(99)]
    ranges = [b.cni_result(b.WEB_ID, "shop/web", b.CIDR, network=name) for name in names]
    for mode in ("observe", "clean"):
        healthy: list[b.Thing] = [*ranges, *map(in_use, names)]
        daemon = Daemon(mode=mode).syncs(3, node(*healthy))
        assert len(daemon.labels("range_free_addresses")) == 100
        assert len(samples(daemon)) < 620
        leaks = (replace(LOST, network=name) for name in names[:10])
        daemon.syncs(4, node(*healthy, *leaks))
        assert len(daemon.labels("leaks_confirmed_total")) == 10 * len(LeakCause)
        assert len(samples(daemon)) < 1050


def test_states_without_reservations_are_absent_but_for_those_that_are_compared() -> None:
    states = {one["state"] for one in Daemon().sync(node()).labels("reservations")}
    assert states == {"in_use", "leaked", "unknown"}
    assert Daemon().sync(node()).get("reservations", network="kubenet", state="leaked") == 0


def test_a_refusal_counts_once_per_sync_by_its_first_reason() -> None:
    daemon = Daemon(mode="clean")
    done = cleaning(
        refused(c.CANDIDATE, c.BUDGET), *(refused(c.BUDGET, of=(lost,)) for lost in c.many(5))
    )
    for _ in range(3):
        daemon.sync(node(LOST), cleaning=done)
    assert daemon.get("releases_refused_total", network="kubenet", reason="not_confirmed") == 3
    assert daemon.get("releases_refused_total", network="kubenet", reason="over_budget") == 15
    assert daemon.get("releases_total", network="kubenet") == 0
    dry = cleaned(cleaning(refused(c.CANDIDATE), dry_run=True), mode="dry-run")
    assert dry.get("releases_refused_total", network="kubenet", reason="not_confirmed") == 1
    seen = Refusal(Reason.CONTAINER_EXISTS, "docker has it")
    exists = refused(seen, of=(reservation("10.9.0.2", network="storage"),))
    recheck = cleaned(cleaning(replace(exists, waited=0.2, held=0.001)))
    assert recheck.get("releases_refused_total", network="storage", reason="container_exists") == 1
    assert recheck.get("lock_wait_seconds_count") == recheck.get("lock_held_seconds_count") == 1
    assert {
        recheck.get("release_failures_total", network="kubenet", reason=one) for one in MISSED
    } == {0}


def test_a_failed_release_is_counted_by_its_reason() -> None:
    for verdict in (Verdict(name) for name in MISSED):
        daemon = cleaned(cleaning(c.outcome(verdict, why="it is another", waited=0.2)))
        failures = {
            one: daemon.get("release_failures_total", network="kubenet", reason=one)
            for one in MISSED
        }
        assert failures == {one: int(one == verdict) for one in MISSED}
        assert daemon.get("releases_total", network="kubenet") == 0
        assert (daemon.get("lock_wait_seconds_count"), daemon.get("lock_held_seconds_count")) == (
            1,
            0,
        )


def test_an_unknown_value_is_absent_and_not_zero_and_a_failed_detector_is_counted() -> None:
    daemon = Daemon().syncs(3, node(LOST)).sync(b.dark_node())
    for name in ("reservations", "range_addresses", "range_free_addresses", "findings"):
        assert daemon.labels(name) == [], name
    assert daemon.labels("oldest_finding_timestamp_seconds") == []
    assert counted(daemon) == 1, "what was counted stays counted"
    alone = b.without_api(node())
    present = {labels["detector"] for labels in Daemon().sync(alone).labels("findings")}
    could_not_run = {gap.detector for gap in b.scanned(alone).gaps}
    only_informational = {one.NAME for one in DETECTORS if one.SEVERITIES == (Severity.INFO,)}
    assert {"shared_ip", "detached_volume"} <= could_not_run
    assert present == {one.NAME for one in DETECTORS} - could_not_run - only_informational
    daemon = Daemon().sync(node(), (SkippedCheck("shared_ip", "KeyError", broken=True),))
    assert (
        daemon.get("findings", detector="shared_ip", severity="critical", phase="confirmed") is None
    )
    assert daemon.get("sync_failures_total", stage="check") == 1
    assert daemon.get("sync_failures_total", stage="read") == 0


HOUR, LATE = timedelta(hours=1), timedelta(seconds=9.5)


def with_resources(*names: str, broken: str = "") -> Snapshot:
    """The kubelet started an hour ago, and each plugin a second after the other."""
    starts = (
        b.transition(TransitionKind.REGISTERED, name, ago=HOUR - timedelta(seconds=second))
        for second, name in enumerate(names)
        if name != broken
    )
    registered = (b.registered(name, *(["d0"] if name != broken else [])) for name in names)
    started = b.transition(TransitionKind.KUBELET_STARTED, ago=HOUR)
    return node(
        device_plugins=b.device_plugins(
            *registered, started, *starts, kubelet_socket=HOUR, checkpoint_written=HOUR - LATE
        )
    )


def resources(daemon: Daemon, name: str = "device_plugin_registered") -> list[str]:
    return [labels["resource"] for labels in daemon.labels(name)]


def test_a_hundred_resources_are_bounded_and_the_rest_is_other_as_is_an_invalid_name() -> None:
    names = [f"vendor.io/device-{number:03}" for number in range(100)]
    daemon = Daemon().sync(with_resources(*names))
    assert resources(daemon) == [*names[:32], "other"]
    assert daemon.get("device_plugin_registered", resource="other") == 1
    assert daemon.get("device_plugin_registration_delay_seconds", resource="other") == 99
    one_is_lost = Daemon().sync(with_resources(*names, broken=names[-1]))
    assert one_is_lost.get("device_plugin_registered", resource="other") == 0
    others = rejected(*(f"a.io/x-{number:03}" for number in range(100)))
    daemon = Daemon().sync(with_resources(*names[:30]), findings=(others,))
    assert len({*resources(daemon), *resources(daemon, "rejected_pods")}) == 33
    assert (
        daemon.get("rejected_pods", resource="other", cause="kubelet_restart", pod_outcome="stuck")
        == 68
    )
    longest = "x" * 253 + "/" + "y" * 63
    odd = (
        "no-slash",
        "a.b/c\nd",
        'a.b/"x"',
        "a.b/" + "x" * 64,
        "x" * 254 + "/y",
        "a/b/c",
        "vendor.io/ü",
        "a.b/c\n",
    )
    for name in (*odd, longest):
        assert resources(Daemon().sync(with_resources(name))) == [
            longest if name == longest else "other"
        ]
    assert resources(Daemon().sync(node(), findings=(rejected(""),)), "rejected_pods") == [
        "unknown"
    ], "it names none"
    other = rejected("")
    (pod,) = other.finding.rejected_pods
    pod = replace(pod, cause=RejectionCause.NOT_FOR_A_DEVICE)
    other = replace(other, finding=replace(other.finding, rejected_pods=(pod,)))
    daemon = Daemon().sync(node(), findings=(other,))
    assert resources(daemon, "rejected_pods") == ["none"], "it was not rejected for a device"


def test_a_plugin_that_cannot_register_is_not_registered() -> None:
    """Its stream is known to be closed, or nothing is known of it: then there is no sample."""
    registered = b.transition(TransitionKind.REGISTERED, b.KVM, ago=HOUR)
    started = b.transition(TransitionKind.KUBELET_STARTED, ago=b.UPTIME)
    for connected, value in ((False, 0), (None, None), (True, 1)):
        plugins = b.device_plugins(
            b.plugin_socket(connected=connected), started, registered, kubelet_socket=None
        )
        daemon = Daemon().sync(node(device_plugins=plugins))
        assert daemon.get("device_plugin_registered", resource=b.KVM) == value


def samples(daemon: Daemon) -> list[str]:
    return [line for line in daemon.scrape().splitlines() if not line.startswith("#")]


def test_the_text_can_be_parsed_holds_each_sample_once_and_is_accepted_by_promtool() -> None:
    for daemon in (Daemon(), everything(), Daemon().sync(b.dark_node())):
        families = list(text_string_to_metric_families(daemon.scrape()))
        samples = [
            (one.name, *sorted(one.labels.items())) for family in families for one in family.samples
        ]
        assert len(samples) == len(set(samples)) > 10
        assert all(family.documentation and family.type != "unknown" for family in families)
        assert "_created" not in daemon.scrape()
        assert {family.name for family in families if family.name.startswith("process_")} == {
            "process_cpu_seconds", "process_resident_memory_bytes", "process_start_time_seconds", "process_open_fds",
        }  # fmt: skip
    needs(
        shutil.which("promtool") is not None,
        "promtool (Debian: apt-get install prometheus), to check the metrics",
    )
    assert run("promtool", "check", "metrics", given=everything().scrape()) == ""


def test_a_bug_in_one_metric_hides_no_other_and_one_in_a_counter_leaves_no_gauge_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> Any:
        raise ZeroDivisionError("a bug")

    tables: dict[str, Sequence[Metric[Any]]] = {"OF_AGENT": OF_AGENT, "OF_SYNC": OF_SYNC}
    for place, table in tables.items():
        for number, metric in enumerate(table):
            daemon = Daemon().sync(node(LOST))
            exported = {family.name for family in daemon.registry.collect()}
            broken = [*table[:number], metric._replace(values=fail), *table[number + 1 :]]
            with monkeypatch.context() as patched:
                patched.setattr(f"agent.exporters.prometheus.{place}", broken)
                daemon.scrape()
                left = {family.name for family in daemon.registry.collect()}
            assert daemon.get("internal_errors_total", part="exporter") == 2, metric.name
            name = f"nodeleak_{metric.name.removesuffix('_total')}"
            assert left == exported - {name}, metric.name
    broken = [metric._replace(values=fail) for metric in COUNTED if isinstance(metric, Metric)]
    monkeypatch.setattr("agent.exporters.prometheus.COUNTED", broken)
    daemon = Daemon()
    with pytest.raises(ZeroDivisionError):
        daemon.sync(node(LOST))
    assert daemon.get("last_sync_timestamp_seconds") is not None


def test_a_scrape_during_a_sync_has_the_size_of_the_journal() -> None:
    sizes: list[float | None] = []

    def measure() -> int:
        sizes.append(daemon.get("journal_bytes"))
        return 7

    daemon = Daemon(journal_size=measure)
    for _ in range(3):
        daemon.sync(node())
    assert sizes == [None, 7, 7]
