"""CNI plugins that hang: one finding, whatever their number."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.cleanup.guards import decide
from agent.exporters.advice import advice
from agent.model.finding import Finding, Severity
from agent.model.release import Reason
from agent.model.snapshot import EntryKind, PluginProcess, Snapshot, UnrecognizedEntry
from tests import builders as b
from tests.builders import NOW, node, pod, processes, scanned, with_waiting_pod

DETECTOR = "hanging_plugin"
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


def plugin(
    pid: int, command: str = "host-local", ago: timedelta = 3 * HOUR, parent: int = 1
) -> PluginProcess:
    return PluginProcess(pid, command, NOW - ago, parent)


def running(*plugins: PluginProcess, **changes: Any) -> Snapshot:
    return node(processes=[replace(processes(), plugins=plugins)], **changes)


def the_finding(snapshot: Snapshot) -> Finding:
    return b.the_finding(DETECTOR, snapshot)


def queue(count: int) -> Sequence[PluginProcess]:
    """Return plugins that came later, each with the host-local that it has started."""
    later = [170 * MINUTE - n * timedelta(seconds=30) for n in range(count)]
    parents = [plugin(7000 + n, "bridge", ago) for n, ago in enumerate(later)]
    children = [plugin(5001 + n, "host-local", ago, 7000 + n) for n, ago in enumerate(later)]
    return [*parents, *children]


def test_a_plugin_that_hangs_is_found_without_a_reservation() -> None:
    def found(ago: timedelta) -> list[str]:
        snapshot = b.without_api(running(plugin(70, "portmap", ago)))
        return [finding.message for finding in b.findings_of(DETECTOR, snapshot)]

    (message,) = found(timedelta(seconds=107))
    assert message == (
        "CNI plugin portmap (process 70) has been running for 1m47s, since 2026-03-26 19:58:13Z: "
        "new pods may wait for it"
    )
    assert found(timedelta(seconds=59)) == []
    assert b.gap_of(DETECTOR, b.without(node(), "processes"))


def test_many_are_one_finding_that_names_the_oldest_and_the_lock_in_the_real_directory() -> None:
    store = replace(running().reservations[0], network="br0", data_dir="/srv/cni")
    snapshot = running(*queue(300), plugin(5000))
    snapshot = replace(snapshot, reservations=(*snapshot.reservations, store))
    message = the_finding(snapshot).message
    assert "CNI plugin host-local (process 5000) has been running for 3h, since" in message
    # A plugin and what it has started are one.
    assert "; 300 more plugin processes may wait for it (300 of bridge)" in message
    assert "the oldest host-local is process 5000" in message
    assert "/srv/cni/br0/lock /srv/cni/br0`" in message
    assert "fuser -v /var/lib/cni/networks/kubenet/lock" in message
    assert len(scanned(snapshot).findings) == 1


def test_advice_about_the_lock_is_given_only_where_host_local_waits_for_it() -> None:
    def steps(snapshot: Snapshot) -> str:
        return " ".join(step.text for step in advice(DETECTOR, scanned(snapshot)))

    assert "holds the lock" in steps(running(plugin(70)))
    other = running(plugin(70, "calico"))
    assert "lock" not in steps(other)
    assert "fuser" not in the_finding(other).message
    # What is true of plugins that fail is not said of one that hangs.
    for word in ("iptables", "/opt/cni/bin", "nodeleak clean"):
        assert word not in steps(running(plugin(70)))


def test_it_is_critical_while_pods_wait_and_none_has_started_since() -> None:
    later = b.sandbox("7" * 64, "shop/late")
    young = replace(later, created=int((NOW - 2 * MINUTE).timestamp()))
    address = pod("shop/late", "10.244.1.7")
    on_host = pod("shop/late", "192.168.0.7", host_network=True)
    for severity, records, ago in (
        (Severity.CRITICAL, (), 1.5 * HOUR),
        (Severity.CRITICAL, (young, on_host), 1.5 * HOUR),
        (Severity.WARNING, (young, address), 1.5 * HOUR),
        # It has started before the other pod began to wait.
        (Severity.CRITICAL, (replace(young, created=0), address), 1.5 * HOUR),
        (Severity.WARNING, (), 4 * MINUTE),
    ):
        hanging = [replace(processes(), plugins=(plugin(70, ago=ago),))]
        snapshot = with_waiting_pod(node(*records, processes=hanging))
        assert the_finding(snapshot).severity is severity, (records, ago)
    assert the_finding(running(plugin(70))).severity is Severity.WARNING, "no pod waits"


def test_nothing_is_released_while_a_plugin_hangs() -> None:
    hanging = [replace(processes(), plugins=(plugin(70),))]
    context = b.guard_context(node(b.reservation("10.244.1.9"), processes=hanging))
    ((_, refusals),) = decide(context)
    assert Reason.PLUGIN_AT_WORK in {refusal.reason for refusal in refusals}


def test_a_fifo_in_the_directory_is_named_as_what_blocks_every_plugin() -> None:
    fifo = UnrecognizedEntry("kubenet", "pipe", "it is a FIFO", blocks=False, kind=EntryKind.FIFO)
    (alone,) = b.findings_of(DETECTOR, node(fifo))
    path = "/var/lib/cni/networks/kubenet/pipe"
    assert alone.message == (
        f"{path} is a FIFO: host-local opens it in each ADD and DEL of kubenet, and waits "
        f"forever: remove it with `(exec 3<>{path}; rm {path})`"
    )
    hanging = [replace(processes(), plugins=(plugin(70),))]
    blocked, waiting = b.findings_of(DETECTOR, node(fifo, processes=hanging))
    assert (blocked.subject, waiting.subject) == ("kubenet/pipe", "plugin processes")
    assert "fuser" not in waiting.message
    other = [replace(fifo, kind=kind) for kind in (None, EntryKind.SOCKET, EntryKind.DIRECTORY)]
    assert b.findings_of(DETECTOR, node(*other)) == []
