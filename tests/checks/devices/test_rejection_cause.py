"""The cause of a rejection: what excludes what, and that nothing in a snapshot contradicts it."""

import cProfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

from agent.model.devices import DeviceTransition, TransitionKind
from agent.model.rejections import RejectedPod, RejectionCause, RejectionKind
from agent.model.snapshot import Known, Node, NodeDevices, Pod, ProcessStartTimes
from tests import builders as b
from tests.builders import NOW, UPTIME, pod, refused_pod, registered, transition
from tests.checks.reported import rejected_pods, resources_of, seconds, with_plugins

GPU = "nvidia.com/gpu"
GPU_SOCKET = "nvidia-gpu.sock"
IDS = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
OTHER_SOCKET = "gpu.intel.com-i915.sock"
I915 = "intel.example/i915"
STARTED, APPEARED = TransitionKind.KUBELET_STARTED, TransitionKind.SOCKET_APPEARED
REGISTERED, LOST = TransitionKind.REGISTERED, TransitionKind.LOST
KUBELET_RESTART = RejectionCause.KUBELET_RESTART
UNVERIFIED = RejectionCause.UNVERIFIED
NO_HEALTHY, INSUFFICIENT = RejectionKind.NO_HEALTHY, RejectionKind.INSUFFICIENT

RACE: Sequence[DeviceTransition] = (
    transition(STARTED, ago=seconds(1000)),
    transition(APPEARED, socket=GPU_SOCKET, ago=seconds(970.5)),
    transition(REGISTERED, GPU, ago=seconds(970)),
)
"""The kubelet started 1000 s ago, and 30 s later the plugin registered."""


def gpu_pod(
    name: str = "ml/run",
    *,
    ago: float,
    refused: RejectionKind = NO_HEALTHY,
    message: str | None = None,
    **changes: Any,
) -> Pod:
    """A pod that was rejected for a GPU `ago` seconds ago."""
    rejected = refused_pod(name, GPU, ago=seconds(ago), refused=refused)
    assert rejected.rejection is not None
    if message is not None:
        rejection = replace(rejected.rejection, message=message, resource="", requested=None)
        rejected = replace(rejected, rejection=rejection)
    return replace(rejected, **changes)


def started_at(refused: Pod, ago: float) -> Pod:
    """The same pod, with a `startTime` of an earlier admission."""
    assert refused.rejection is not None
    return replace(refused, rejection=replace(refused.rejection, start_time=NOW - seconds(ago)))


def running(name: str, *, ago: float) -> Pod:
    started = NOW - seconds(ago)
    return replace(pod(name), created=started - seconds(10), started=started)


def worker(kubelet: str, capacity: int = 4, allocatable: int = 4) -> Node:
    devices = (NodeDevices(GPU, capacity, allocatable),)
    return Node("worker-1", (), 110, devices=devices, kubelet=kubelet)


def cause_of(
    refused: Pod,
    *records: Any,
    kubelet: str = "v1.33.2",
    bound: float = 970.5,
    connected: bool | None = True,
    healthy: Sequence[str] = IDS,
    written: float = 970,
    socket: str = GPU_SOCKET,
    resource: str = GPU,
    booted: timedelta = UPTIME,
    allocatable: int = 4,
    processes: ProcessStartTimes | None = None,
    unavailable: Sequence[str] = (),
) -> RejectedPod:
    """Return what is said of a pod. All times are seconds ago; the kubelet started at 1000."""
    snapshot = with_plugins(
        refused,
        *records,
        b.plugin_socket(socket, ago=seconds(bound), connected=connected),
        registered(resource, *healthy),
        kubelet=1000,
        written=written,
    )
    node = worker(kubelet, allocatable=allocatable)
    snapshot = replace(snapshot, node=Known(node), uptime=booted)
    if processes is not None:
        snapshot = replace(snapshot, processes=Known(processes))
    (found,) = rejected_pods(b.without(snapshot, *unavailable))
    return found


def test_a_boot_excludes_the_bugs_about_pods_that_ran() -> None:
    entry = b.allocation("ml/run", GPU, "GPU-0")
    for shape in ({"controller": "Job/train"}, {"wants_in_init": (GPU,)}, {}):
        refused = started_at(gpu_pod(ago=999, **shape), ago=40_000)
        for version in ("v1.33.2", "v1.28.9", "v1.27.16", ""):
            found = cause_of(refused, *RACE, entry, kubelet=version, booted=seconds(1040))
            assert found.cause is RejectionCause.NODE_REBOOT, (shape, version)
            assert "was registered 30.0 s later" in found.why


def test_a_second_start_of_the_kubelet_is_no_boot_if_the_plugin_had_registered_since() -> None:
    first = transition(STARTED, ago=seconds(1200))
    registered_first = transition(REGISTERED, GPU, ago=seconds(1190))
    uptime = seconds(1230)
    history = [
        replace(change, uptime=uptime - (NOW - change.at))
        for change in (first, registered_first, *RACE)
    ]
    refused = gpu_pod(ago=999)
    assert cause_of(refused, *history, booted=uptime).cause is RejectionCause.KUBELET_RESTART
    # A kubelet that crashed before any plugin had registered changes nothing.
    crashed = [change for change in history if change.at != registered_first.at]
    assert cause_of(refused, *crashed, booted=uptime).cause is RejectionCause.NODE_REBOOT


def test_a_bug_of_the_kubelet_is_claimed_only_of_versions_that_have_it() -> None:
    job = started_at(gpu_pod(ago=999, controller="Job/once"), ago=9000)
    init = started_at(gpu_pod(ago=999, wants_in_init=(GPU,)), ago=9000)
    readmitted, again = (
        RejectionCause.READMITTED_AFTER_COMPLETION,
        RejectionCause.INIT_CONTAINER,
    )
    restart = KUBELET_RESTART
    for version, of_job, of_init in (
        ("v1.20.2", restart, restart),
        ("v1.24.17", readmitted, restart),
        ("v1.27.2", restart, restart),  # it rejects every running pod
        ("v1.27.16", readmitted, again),
        ("v1.28.13", readmitted, again),
        ("v1.28.14", restart, again),
        ("v1.31.0", readmitted, again),
        ("v1.31.1", restart, again),
        ("v1.33.2", restart, again),
        ("v1.37.2-gke.100", restart, again),
        ("", restart, restart),
        ("unknown", restart, restart),
    ):
        assert cause_of(job, *RACE, kubelet=version).cause is of_job, version
        assert cause_of(init, *RACE, kubelet=version).cause is of_init, version


def test_a_pod_of_which_nothing_shows_an_earlier_run_in_this_boot_met_no_bug() -> None:
    entry = b.allocation("ml/run", GPU, "GPU-0")
    before_boot = UPTIME.total_seconds() + 60
    init = gpu_pod(ago=999, wants_in_init=(GPU,))
    for refused in (init, started_at(init, ago=before_boot), started_at(init, ago=999)):
        assert cause_of(refused, *RACE, entry).cause is RejectionCause.KUBELET_RESTART
    # After a restart of the runtime its containers need not have run on.
    again = started_at(init, ago=9000)
    for docker, expected in ((8000, KUBELET_RESTART), (9500, RejectionCause.INIT_CONTAINER)):
        processes = b.processes(docker=seconds(docker))
        assert cause_of(again, *RACE, entry, processes=processes).cause is expected
    assert cause_of(again, *RACE, unavailable=["processes"]).cause is KUBELET_RESTART
    # The version is that of the present kubelet, not of the one before.
    earlier = (
        transition(STARTED, ago=seconds(5000)),
        transition(REGISTERED, GPU, ago=seconds(4900)),
    )
    refused = started_at(gpu_pod(ago=4990, wants_in_init=(GPU,)), ago=9000)
    assert cause_of(refused, *earlier, *RACE).cause is RejectionCause.KUBELET_RESTART


def test_the_words_of_the_kubelet_are_evidence_without_a_resource_or_a_time() -> None:
    frame = "Pod was rejected: Allocate failed due to {}, which is unexpected"
    for kind, cause, words in (
        (
            RejectionKind.PLUGIN_CRASHED,
            RejectionCause.PLUGIN_RESTART,
            "rpc error: code = Unavailable desc = error reading from server: EOF",
        ),
        (
            RejectionKind.PLUGIN_ERROR,
            RejectionCause.PLUGIN_ERROR,
            "unexpectedly allocated less resources than required. Requested: 2, Got: 1",
        ),
        (
            RejectionKind.REQUEST_CHANGED,
            RejectionCause.REQUEST_CHANGED,
            f'pod "u" container "c" changed request for resource "{GPU}" from 1 to 2',
        ),
        (
            RejectionKind.CHECKPOINT_FAILED,
            RejectionCause.CHECKPOINT_FAILED,
            "failed to write checkpoint file: no space left on device",
        ),
        (RejectionKind.OTHER, RejectionCause.UNVERIFIED, "a device in words of a new version"),
        (NO_HEALTHY, RejectionCause.UNVERIFIED, "no healthy devices present"),
    ):
        refused = gpu_pod(ago=999, refused=kind, message=frame.format(words))
        undated = replace(refused, rejection=replace(refused.rejection, at=None))  # type: ignore[type-var]
        for given in (refused, undated):
            found = cause_of(given, *RACE)
            assert found.cause is cause, words
            assert words in found.why
    full = gpu_pod(ago=500, refused=RejectionKind.CHECKPOINT_FAILED, message="no space left")
    finding = b.the_finding("rejected_pod", with_plugins(full, *RACE, kubelet=1000, written=970))
    assert "pod ml/run was rejected: the kubelet could not write to its disk" in finding.message
    assert "for a device" not in finding.message


def test_earlier_devices_that_are_not_healthy_are_told_as_such() -> None:
    refused = gpu_pod(ago=500, refused=RejectionKind.POD_DEVICES_UNHEALTHY)
    entry = b.allocation("ml/run", GPU, "GPU-7")
    found = cause_of(refused, *RACE, entry)
    assert found.cause is RejectionCause.UNHEALTHY
    assert "had healthy devices" in found.why
    assert "by the checkpoint now, its 4 healthy devices lack GPU-7" in found.why
    # The same words before the registration that snapshots saw: there was an earlier one.
    assert cause_of(gpu_pod(ago=999, refused=RejectionKind.POD_DEVICES_UNHEALTHY), *RACE).cause is (
        RejectionCause.UNHEALTHY
    )


def test_devices_are_in_use_only_if_the_checkpoint_agrees() -> None:
    refused = gpu_pod(ago=500, refused=INSUFFICIENT)
    users = [running(f"ml/user-{n}", ago=900) for n in range(4)]
    entries = [b.allocation(f"ml/user-{n}", GPU, IDS[n]) for n in range(4)]
    found = cause_of(refused, *RACE, *users, *entries, written=890)
    assert found.cause is RejectionCause.EXHAUSTED
    assert "all its devices were in use" in found.why
    assert found.why.endswith("by the checkpoint now, pods have 4 of 4")
    ending = [replace(users[0], deleting=True), *users[1:]]
    found = cause_of(refused, *RACE, *ending, *entries, written=890)
    assert found.why.endswith("pods have 4 of 4 (of them, ml/user-0 is being deleted)")

    one = (*RACE, users[0], entries[0])
    leaked = cause_of(refused, *one, written=890)
    assert leaked.cause is RejectionCause.DEVICES_LEAKED
    assert "by the checkpoint now, pods have 1 of 4" in leaked.why
    assert "kubernetes#130145" in leaked.why
    assert "all its devices" not in leaked.why
    # Written since, or with entries of pods that have ended since: pods may have had the others.
    ended = replace(running("ml/done", ago=900), phase="Succeeded")
    given = [b.allocation("ml/done", GPU, *IDS[1:])]
    for records, written in ((one, 300), ((*one, ended, *given), 890), ((*one, *given), 890)):
        found = cause_of(refused, *records, written=written)
        assert found.cause is RejectionCause.UNVERIFIED
        assert "by the checkpoint now, pods have 1 of 4" in found.why
    # A pod that runs and that the API server does not have is no leak of the kubelet.
    sandbox = b.sandbox("c0ffee", "ml/done")
    two = [b.allocation("ml/done", GPU, IDS[1]), b.allocation("ml/over", GPU, *IDS[2:])]
    for unlisted, sandboxes, words in (
        (given, [sandbox], "ml/done: it runs, and the API server does not have it"),
        (
            two,
            [sandbox, b.sandbox("decade", "ml/over")],
            "ml/done, ml/over: they run, and the API server does not have them",
        ),
    ):
        snapshot = with_plugins(
            refused,
            *one,
            *unlisted,
            b.plugin_socket(GPU_SOCKET, ago=seconds(970.5)),
            registered(GPU, *IDS),
            kubelet=1000,
            written=890,
            containers=sandboxes,
        )
        (found,) = rejected_pods(snapshot)
        assert found.cause is RejectionCause.UNLISTED_POD
        assert f"and 3 more are with {words}" in found.why
    # Without the containers, it may run or not.
    found = cause_of(refused, *one, *given, written=890, unavailable=["containers"])
    assert found.cause is RejectionCause.UNVERIFIED
    assert "some of these pods may still run" in found.why


def test_a_connected_plugin_without_a_healthy_device_is_told_as_such() -> None:
    start = RACE[:2]
    for kind in (NO_HEALTHY, RejectionKind.NO_CAPACITY):
        found = cause_of(
            gpu_pod(ago=100, refused=kind), *start, healthy=(), written=960, allocatable=0
        )
        assert found.cause is RejectionCause.UNHEALTHY, kind
        assert "is connected and reports no healthy device" in found.why
        assert "capacity 4, allocatable 0" in found.why
    # Kubelets before 1.25.10 also say so of a resource without a healthy device.
    for version, expected in (("v1.24.17", RejectionCause.UNHEALTHY), ("v1.33.2", UNVERIFIED)):
        refused = gpu_pod(ago=100, refused=INSUFFICIENT)
        found = cause_of(refused, *start, healthy=(), written=960, kubelet=version)
        assert found.cause is expected, version
    # The kubelet's own words exclude that its plugin was connected then.
    for ago in (100, 900):
        gone = gpu_pod(ago=ago, refused=RejectionKind.PLUGIN_GONE)
        found = cause_of(gone, *start, healthy=(), written=960)
        assert found.cause is RejectionCause.UNVERIFIED, ago
        assert "the kubelet said that the plugin was gone" in found.why
    # Before the plugin bound its socket, the kubelet was too early all the same.
    found = cause_of(gpu_pod(ago=999), *start, healthy=(), written=960)
    assert found.cause is RejectionCause.KUBELET_RESTART
    assert (
        "has had no healthy device since, although its plugin is connected (it bound" in found.why
    )
    assert "has not been registered since" not in found.why
    # By the API server's clock, it may have been before or after the plugin was there.
    refused = gpu_pod(ago=969, refused=INSUFFICIENT)
    assert refused.rejection is not None
    refused = replace(refused, rejection=replace(refused.rejection, by_api=True, available=0))
    lost = (transition(REGISTERED, GPU, ago=seconds(990)), transition(LOST, GPU, ago=seconds(980)))
    for history in (start, (RACE[0], *lost, RACE[1])):
        found = cause_of(refused, *history, healthy=(), written=970, kubelet="v1.20.2")
        assert found.cause is RejectionCause.UNVERIFIED
        assert "may have been before the plugin had registered" in found.why
    # Without knowing the connection nothing is claimed: the kubelet would have dropped it by now.
    found = cause_of(gpu_pod(ago=100), *start, healthy=(), written=960, connected=None)
    assert found.cause is RejectionCause.UNVERIFIED


def test_no_delay_is_computed_from_a_registration_that_may_be_a_later_one() -> None:
    """No history: the kubelet and the last registration are both seen now, an hour later."""
    hour = 3600.0
    start = replace(transition(STARTED, ago=seconds(hour)), uptime=UPTIME)
    again = replace(transition(REGISTERED, GPU, ago=seconds(600)), uptime=UPTIME)
    socket = replace(transition(APPEARED, socket=GPU_SOCKET, ago=seconds(601)), uptime=UPTIME)
    history = (start, socket, again)

    def told(refused: Pod, *records: Any) -> RejectedPod:
        snapshot = with_plugins(
            refused,
            *history,
            *records,
            b.plugin_socket(GPU_SOCKET, ago=seconds(601)),
            registered(GPU, *IDS),
            kubelet=hour,
            written=600,
        )
        (found,) = rejected_pods(replace(snapshot, uptime=seconds(hour + 20)))
        return found

    found = told(gpu_pod(ago=620))
    assert found.cause is RejectionCause.PLUGIN_RESTART
    assert "bound its socket again" in found.why
    assert "s later" not in found.why
    # It may never have registered before, or have gone long before.
    unregistered = gpu_pod(ago=620, refused=RejectionKind.UNREGISTERED)
    assert told(unregistered).cause is RejectionCause.UNVERIFIED
    # Soon after the start it is too early, unless a pod has had a device since before.
    early = gpu_pod(ago=hour - 200)
    found = told(early)
    assert found.cause is RejectionCause.NODE_REBOOT
    assert "was registered later" in found.why
    holder = (running("ml/old", ago=hour - 100), b.allocation("ml/old", GPU, "GPU-0"))
    found = told(early, *holder)
    assert found.cause is RejectionCause.UNVERIFIED
    assert "pod ml/old has had nvidia.com/gpu since" in found.why


def test_an_agent_that_comes_while_the_plugin_is_away_has_not_seen_the_first_registration() -> None:
    """Its first snapshot saw the start, days before, and no device; then the plugin came back."""
    days = 200_000.0
    start = replace(transition(STARTED, ago=seconds(days)), uptime=UPTIME - seconds(90))
    socket = transition(APPEARED, socket=GPU_SOCKET, ago=seconds(30.5))
    history = (start, socket, transition(REGISTERED, GPU, ago=seconds(30)))
    for resource in resources_of(
        with_plugins(
            *history,
            b.plugin_socket(GPU_SOCKET, ago=seconds(30.5)),
            registered(GPU, *IDS),
            kubelet=days,
            written=30,
        )
    ).values():
        assert resource["registered"]
        assert resource["registration_delay_seconds"] is None


def test_devices_are_unhealthy_only_if_the_plugin_is_known_and_was_connected() -> None:
    def outage(socket: str, resource: str, **others: Any) -> RejectedPod:
        """The resource was lost 60 s ago; 10 s later a pod was rejected."""
        history = (
            transition(STARTED, ago=seconds(1000)),
            transition(APPEARED, socket="unknown.sock", ago=seconds(980)),
            transition(APPEARED, socket=socket, ago=seconds(970.5)),
            transition(REGISTERED, resource, ago=seconds(970)),
            transition(LOST, resource, ago=seconds(60)),
            *others.pop("later", ()),
        )
        refused = refused_pod("ml/run", resource, ago=seconds(50), refused=NO_HEALTHY)
        return cause_of(
            refused,
            *history,
            b.plugin_socket("unknown.sock", ago=seconds(980)),
            healthy=(),
            written=60,
            socket=socket,
            resource=resource,
            **others,
        )

    assert outage(GPU_SOCKET, GPU).cause is RejectionCause.UNHEALTHY
    assert outage(GPU_SOCKET, GPU, connected=False).cause is RejectionCause.PLUGIN_RESTART
    assert outage(GPU_SOCKET, GPU, connected=None).cause is RejectionCause.UNVERIFIED
    # Two sockets, and no convention says whose they are.
    again = transition(APPEARED, socket=OTHER_SOCKET, ago=seconds(25))
    for later in ((), (again,)):
        found = outage(OTHER_SOCKET, I915, later=later)
        assert found.cause is UNVERIFIED
        assert ("bound their sockets again" in found.why) is bool(later)
    # What registers right after a socket was bound is its plugin's.
    both = (again, transition(REGISTERED, I915, ago=seconds(24.9)))
    assert outage(OTHER_SOCKET, I915, later=both).cause is RejectionCause.PLUGIN_RESTART


def test_a_long_history_is_not_searched_again_for_each_of_many_rejected_pods() -> None:
    """With each change of the history, each pod costs more: the square of neither."""

    def calls(history: int) -> int:
        changes = [
            transition(what, GPU, ago=seconds(960 - 3 * number))
            for number in range(history)
            for what in (LOST, REGISTERED)
        ]
        pods = [gpu_pod(f"ml/run-{number}", ago=100 + number / 10) for number in range(100)]
        records = (registered(GPU, *IDS), *RACE, *changes, *pods)
        snapshot = with_plugins(*records, kubelet=1000, written=970)
        with cProfile.Profile() as profile:
            assert len(rejected_pods(snapshot)) == 100
        return sum(entry.callcount for entry in profile.getstats())

    assert calls(history=120) < 30 * calls(history=1)


def test_a_resource_that_no_plugin_ever_offered_lost_no_race() -> None:
    efa, eni = "vpc.amazonaws.com/efa", "vpc.amazonaws.com/pod-eni"
    refused = refused_pod("pay/api", eni, ago=seconds(985), refused=RejectionKind.NO_CAPACITY)
    for booted in (UPTIME, seconds(1030)):
        found = cause_of(refused, *RACE, resource=efa, healthy=("rdmap0",), booted=booted)
        assert found.cause is UNVERIFIED
        assert "nothing here shows one that ever did" in found.why
    # The device manager speaks of resources of plugins only.
    told = refused_pod("pay/api", eni, ago=seconds(985), refused=RejectionKind.UNREGISTERED)
    found = cause_of(told, *RACE, resource=efa, healthy=("rdmap0",), booted=seconds(1030))
    assert found.cause is RejectionCause.NODE_REBOOT
    # What the checkpoint lists or gave out had a plugin, even if no snapshot saw it.
    for record in (registered(eni), b.allocation("pay/old", eni, "eni0")):
        known = cause_of(
            refused, *RACE, record, resource=efa, healthy=("rdmap0",), booted=seconds(1030)
        )
        assert known.cause is RejectionCause.NODE_REBOOT


def test_a_kubelet_that_knows_no_extended_resources_of_dra_is_told() -> None:
    refused = gpu_pod(ago=985, refused=RejectionKind.NO_CAPACITY, dra_resources=(GPU,))
    found = cause_of(refused, *RACE)
    assert found.cause is UNVERIFIED
    assert "DRAExtendedResource" in found.why
    assert cause_of(replace(refused, dra_resources=()), *RACE).cause is KUBELET_RESTART
