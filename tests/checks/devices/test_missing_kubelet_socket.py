"""A running kubelet whose `kubelet.sock` was removed: no device plugin can register."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

from agent.checks import engine
from agent.checks.devices.history import with_history
from agent.model.devices import DevicePlugins, DeviceTransition, TransitionKind
from agent.model.finding import Severity
from agent.model.report import Report
from tests import builders as b
from tests.builders import (
    GRACE,
    KVM,
    KVM_SOCKET,
    NOW,
    UPTIME,
    device_plugins,
    node,
    plugin_socket,
    processes,
    registered,
    transition,
    without,
)
from tests.checks.reported import history_of, resources_of

DETECTOR = "missing_kubelet_socket"
HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
STARTED = transition(TransitionKind.KUBELET_STARTED, ago=UPTIME)
SINCE_BOOT = (
    STARTED,
    transition(TransitionKind.SOCKET_APPEARED, socket=KVM_SOCKET, ago=UPTIME - 5 * SECOND),
    transition(TransitionKind.REGISTERED, KVM, ago=UPTIME - 5 * SECOND),
)
RESTARTED_PLUGIN = plugin_socket(ago=HOUR, connected=False)
WRITTEN = registered(KVM, "kvm0", "kvm1")

History = tuple[DeviceTransition, ...]
only, subjects = partial(b.the_finding, DETECTOR), partial(b.subjects_of, DETECTOR)


def an_hour_of(plugins_with: Callable[[History], DevicePlugins]) -> Report:
    """Sync every minute for an hour, as the daemon does: each has the history of the last."""
    history: History = SINCE_BOOT
    state = None
    for minute in range(61):
        plugins = plugins_with(history)
        snapshot = with_history(node(device_plugins=plugins, later=minute * MINUTE))
        history = snapshot.device_plugins.known().history
        report, state = engine.run(
            snapshot, state, grace=GRACE, confirm_after=timedelta(seconds=30)
        )
    return report


def test_an_hour_without_the_kubelets_socket_is_a_finding_and_no_registration() -> None:
    def removed(*records: Any, socket: timedelta | None = None) -> Report:
        return an_hour_of(
            lambda history: device_plugins(
                RESTARTED_PLUGIN, *records, *history, kubelet_socket=socket
            )
        )

    for report, detector in (
        (removed(), DETECTOR),
        (removed(WRITTEN), DETECTOR),
        (removed(WRITTEN, socket=UPTIME), "late_device_plugin"),
    ):
        (tracked,) = report.findings
        assert (tracked.finding.detector, tracked.confirmed) == (detector, True)
        assert report.complete
        state = resources_of(report.assessment.snapshot)[KVM]
        assert (state["registered"], state["devices"]) == (False, 0)
        kinds = [change.what for change in history_of(report.assessment.snapshot)]
        assert kinds.count(TransitionKind.LOST) == 1
    finding = removed().findings[0].finding
    assert (finding.subject, finding.severity, finding.since) == (
        "kubelet.sock",
        Severity.WARNING,
        NOW,
    )
    assert KVM in finding.message


def gone(*records: Any, **others: Any) -> DevicePlugins:
    return device_plugins(*records, **{"kubelet_socket": None, **others})


def test_only_the_directory_of_the_running_kubelet_proves_it() -> None:
    def started(ago: timedelta, plugins: DevicePlugins) -> Any:
        return node(device_plugins=plugins, processes=[processes(kubelet=ago)])

    listens = replace(gone(RESTARTED_PLUGIN), listens_without_file=True)
    stale = transition(TransitionKind.KUBELET_STARTED, ago=UPTIME + HOUR, boot_id="another")
    for proof, snapshot in {
        "a snapshot saw the socket of this kubelet": started(UPTIME, gone(STARTED)),
        "this kubelet wrote the checkpoint": started(
            HOUR, gone(WRITTEN, checkpoint_written=MINUTE)
        ),
        "it listens on a socket whose file is gone": started(HOUR, listens),
    }.items():
        assert subjects(snapshot) == ["kubelet.sock"], proof
    for doubt, snapshot in {
        "nothing is known of the directory": started(HOUR, gone(RESTARTED_PLUGIN)),
        "another kubelet bound the socket": started(HOUR, gone(STARTED)),
        "another boot's kubelet did": started(UPTIME, gone(stale)),
        "another kubelet wrote the checkpoint": started(HOUR, gone(WRITTEN)),
        "the checkpoint is of the future": started(HOUR, gone(WRITTEN, checkpoint_written=-HOUR)),
        "its directory is empty": started(HOUR, replace(gone(), listens_without_file=True)),
        "the socket is there": started(UPTIME, device_plugins(STARTED)),
        "no kubelet runs": node(device_plugins=gone(STARTED), processes=[processes(kubelet=None)]),
    }.items():
        assert subjects(snapshot) == [], doubt
    unread = without(started(UPTIME, gone(STARTED)), "processes")
    assert b.gap_of(DETECTOR, unread).startswith("processes")
    assert subjects(without(node(), "processes")) == [], "the socket is there"


def test_a_clock_that_was_set_since_the_kubelet_started_is_no_doubt() -> None:
    """A node without a battery boots in the past: then the boot clock tells whose socket it was."""
    in_the_past = replace(STARTED, at=NOW - timedelta(days=20_000), uptime=timedelta(minutes=1))
    assert subjects(node(device_plugins=gone(in_the_past))) == ["kubelet.sock"]
    before = replace(in_the_past, uptime=UPTIME - 2 * HOUR)
    restarted = [processes(kubelet=HOUR)]
    assert subjects(node(device_plugins=gone(before), processes=restarted)) == []


def test_what_is_known_of_a_registration_without_the_kubelets_socket() -> None:
    """An open stream outlives the file; where nothing tells of a stream, nothing is known."""

    def state(*records: Any) -> Any:
        return resources_of(node(device_plugins=gone(*SINCE_BOOT, *records)))[KVM]["registered"]

    assert state(plugin_socket(ago=UPTIME - 5 * SECOND, connected=True), WRITTEN) is True
    assert state(RESTARTED_PLUGIN) is False
    assert state(replace(RESTARTED_PLUGIN, connected=None), WRITTEN) is None
    assert state(WRITTEN) is None, "the plugin's socket was removed too"
    assert state(registered(KVM)) is False, "the kubelet wrote that it has no device"
    lost = transition(TransitionKind.LOST, KVM, ago=HOUR)
    assert state(lost, replace(RESTARTED_PLUGIN, connected=True)) is False


def test_a_plugin_that_is_not_connected_is_not_registered_whatever_was_remembered() -> None:
    """As where somebody removed the checkpoint alone: no file says then that the plugin is gone."""
    kept = device_plugins(RESTARTED_PLUGIN, *SINCE_BOOT)
    assert resources_of(node(device_plugins=kept))[KVM]["registered"] is False
    assert b.findings_of("late_device_plugin", node(device_plugins=kept)) == [], "it has a minute"
    lost = transition(TransitionKind.LOST, KVM, ago=2 * MINUTE)
    late = b.the_finding(
        "late_device_plugin",
        node(device_plugins=device_plugins(RESTARTED_PLUGIN, *SINCE_BOOT, lost)),
    )
    assert f"lost it at {(NOW - 2 * MINUTE):%Y-%m-%d %H:%M:%S}Z" in late.message


def test_the_moment_that_the_socket_was_gone_is_kept_until_the_kubelet_starts_again() -> None:
    history = history_of(node(device_plugins=gone(*SINCE_BOOT, RESTARTED_PLUGIN)))
    later = node(device_plugins=gone(*history, RESTARTED_PLUGIN), later=HOUR)
    assert history_of(later) == history
    assert only(later).since == NOW
    many = (transition(TransitionKind.SOCKET_APPEARED, socket=f"{n}.sock") for n in range(300))
    bounded = node(device_plugins=gone(*history, *many), later=HOUR)
    assert only(bounded).since == NOW
    again = device_plugins(*history, RESTARTED_PLUGIN, kubelet_socket=-HOUR)
    back = node(device_plugins=again, later=HOUR)
    assert subjects(back) == []
    vanished = gone(*history_of(back), RESTARTED_PLUGIN)
    restarted = [processes(kubelet=-HOUR)]
    second = node(device_plugins=vanished, later=2 * HOUR, processes=restarted)
    assert only(second).since == NOW + 2 * HOUR
