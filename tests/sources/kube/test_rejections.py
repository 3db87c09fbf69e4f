"""How the kubelet rejects pods for devices, in the messages of its versions 1.17 to 1.36."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import product
from typing import Any, NamedTuple

from agent.model.rejections import RejectionKind

KVM, GPU = "devices.kubevirt.io/kvm", "nvidia.com/gpu"
Pods = Callable[..., Any]
GONE = "rpc error: code = Unavailable desc ="
PREFERRED = "device plugin GetPreferredAllocation rpc failed with err:"
STRUCT_1_18 = (
    "&{0xc00 0xc01 /var/lib/kubelet/device-plugins/kubevirt-kvm.sock devices.kubevirt.io/kvm "
    "{13847551 97 0x72} {0 0} 0x1f}"
)
STRUCT_1_25 = (
    "&{{0 0} devices.kubevirt.io/kvm <nil> {13847551 97 0x72} 0xc0}"  # How Go prints an endpoint
)
PREEMPTION = (
    "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to "
    f"preempt: no set of running pods found to reclaim resources: [(res: {KVM}, q: 1), ]"
)
DIALLED = (
    'dial unix /var/lib/kubelet/device-plugins/kubevirt-kvm.sock: connect: connection refused"'
)

FRAMES = (
    "Pod Update plugin resources failed due to {}, which is unexpected.",  # 1.17
    "Pod Allocate failed due to {}, which is unexpected",  # 1.18
    "Pod was rejected: Allocate failed due to {}, which is unexpected",  # 1.26
    "Allocate failed due to {}, which is unexpected",  # an event
    "Pod was rejected: Allocate failed due to {}, which is unexpected.",  # a copy with a dot
    "Pod Allocate failed due to {}",  # a copy cut short
)
FRAME = FRAMES[2]
TOO_LARGE = (
    "rpc error: code = Unknown desc = request for 'nvidia.com/gpu.shared: 2' too large: "
    "maximum request size for shared resources is 1"
)
UNREGISTERED = f"can't allocate unregistered device {KVM}"


class Parsed(NamedTuple):
    """A parsed rejection, without its time and text."""

    refused: RejectionKind
    resource: str = ""
    requested: int | None = None
    available: int | None = None
    socket: str = ""


CAUSES = {
    Parsed(RejectionKind.UNREGISTERED, KVM): (
        UNREGISTERED,
        f"cannot allocate unregistered device {KVM}",
    ),
    Parsed(RejectionKind.NO_HEALTHY, GPU): (
        f"no healthy devices present; cannot allocate unhealthy devices {GPU}",
    ),
    Parsed(RejectionKind.POD_DEVICES_UNHEALTHY, GPU): (
        f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {GPU}",
    ),
    Parsed(RejectionKind.INSUFFICIENT, KVM, 1, 0): (
        f"requested number of devices unavailable for {KVM}. Requested: 1, Available: 0",
    ),
    Parsed(RejectionKind.INSUFFICIENT, "nvidia.com/GRID_P40-1Q.v2", 8, 3): (
        "requested number of devices unavailable for nvidia.com/GRID_P40-1Q.v2. Requested: 8, Available: 3",
    ),
    Parsed(RejectionKind.PLUGIN_GONE, KVM): (
        f"unknown Device Plugin {KVM}",
        f"endpoint not found in cache for a registered resource: {KVM}",
        f"endpoint {STRUCT_1_25} has been stopped",
    ),
    Parsed(RejectionKind.PLUGIN_GONE, KVM, socket="kubevirt-kvm.sock"): (
        f"endpoint {STRUCT_1_18} has been stopped",
    ),
    Parsed(RejectionKind.PLUGIN_CRASHED, socket="kubevirt-kvm.sock"): (
        f'{GONE} connection error: desc = "transport: Error while dialing {DIALLED}',
        f'{GONE} all SubConns are in TransientFailure, latest connection error: "{DIALLED}',
    ),
    Parsed(RejectionKind.PLUGIN_CRASHED, socket="gpu"): (
        f'{GONE} "dial unix /var/lib/kubelet/device-plugins/gpu: connect: no such file"',
    ),
    Parsed(RejectionKind.PLUGIN_CRASHED): (
        f"{GONE} transport is closing",
        f"{GONE} error reading from server: EOF",
        "rpc error: code = Unknown desc = error reading from server: EOF",
        "rpc error: code = Internal desc = transport is closing",
        "rpc error: code = Canceled desc = grpc: the client connection is closing",
        f"{PREFERRED} {GONE} transport is closing",
    ),
    Parsed(RejectionKind.PLUGIN_ERROR): (
        f"{PREFERRED} rpc error: code = Unknown desc = nvml: GPU is lost",
        "rpc error: code = Unknown desc = write /tmp/x: no space left on device",
        "rpc error: code = DeadlineExceeded desc = context deadline exceeded",
        "rpc error: code = Unknown desc = requested number of devices unavailable for a/b. Requested: 1, Available: 0",
        "no containers return in allocation response &AllocateResponse{}",
    ),
    Parsed(RejectionKind.CHECKPOINT_FAILED): (
        'failed to write checkpoint file "kubelet_internal_checkpoint": read-only file system',
        "[memorymanager] write /var/lib/kubelet/.memory_manager_state: no space left on device",
    ),
    Parsed(RejectionKind.REQUEST_REFUSED): (TOO_LARGE,),
    Parsed(RejectionKind.OTHER): ("a device of words that no version has said yet",),
    Parsed(RejectionKind.REQUEST_CHANGED, KVM, 2): (
        f'pod "0aa1c1f2" container "compute" changed request for resource "{KVM}" from 1 to 2',
        f"pod 0aa1c1f2 container compute changed request for resource {KVM} from 1 to 2",
    ),
    Parsed(RejectionKind.PLUGIN_ERROR, "", 2): (
        "unexpectedly allocated less resources than required. Requested: 2, Got: 1",
    ),
}


def rejected(
    reason: Any, message: Any = "", wants: tuple[str, ...] = (), **more: Any
) -> dict[str, Any]:
    """Return a pod that failed for this reason. `fields`: its managed fields; `more`: of its status."""
    metadata = {"managedFields": more.pop("fields", None)}
    containers = [{"resources": {"limits": dict.fromkeys(wants, 1)}}]
    status = {"phase": "Failed", "reason": reason, "message": message, **more}
    return {"metadata": metadata, "spec": {"containers": containers}, "status": status}


def parsed(pods: Pods, *given: dict[str, Any]) -> list[Parsed | None]:
    rejections = [pod.rejection for pod in pods(*given)]
    return [
        Parsed(found.refused, found.resource, found.requested, found.available, found.socket)
        if found
        else None
        for found in rejections
    ]


def test_a_device_rejection_of_every_version_and_an_exhausted_resource_are_parsed(
    pods: Pods,
) -> None:
    for expected, causes in CAUSES.items():
        messages = [frame.format(cause) for frame, cause in product(FRAMES, causes)]
        given = [rejected("UnexpectedAdmissionError", message) for message in messages]
        assert parsed(pods, *given) == [expected] * len(messages)
        assert [pod.rejection.message for pod in pods(*given)] == messages
    for counts, expected in (
        ("requested: 1, used: 0, capacity: 0", Parsed(RejectionKind.NO_CAPACITY, KVM, 1, 0)),
        ("requested: 2, used: 3, capacity: 0", Parsed(RejectionKind.NO_CAPACITY, KVM, 2, 0)),
        ("requested: 1, used: 110, capacity: 110", Parsed(RejectionKind.INSUFFICIENT, KVM, 1, 0)),
        ("requested: 4, used: 108, capacity: 110", Parsed(RejectionKind.INSUFFICIENT, KVM, 4, 2)),
        ("requested: 1, used: 9, capacity: 8", Parsed(RejectionKind.INSUFFICIENT, KVM, 1, 0)),
        ("and in other words", Parsed(RejectionKind.OTHER, KVM)),
        (f"requested: {'9' * 5000}, used: 1, capacity: 1", Parsed(RejectionKind.OTHER, KVM)),
    ):
        message = f"Node didn't have enough resource: {KVM}, {counts}"
        given = [
            rejected(f"OutOf{KVM}", prefix + message)
            for prefix in ("", "Pod ", "Pod was rejected: ")
        ]
        assert parsed(pods, *given) == [expected] * 3
    closing = "rpc error: code = Unavailable desc = transport is closing"
    cases = (
        (closing, (), ""),
        (closing, (KVM,), KVM),
        (closing, (KVM, GPU), ""),
        (UNREGISTERED, (GPU,), KVM),
        ("failed to write checkpoint file: no space left on device", (KVM,), ""),
    )
    given = [
        rejected("UnexpectedAdmissionError", FRAME.format(cause), wants)
        for cause, wants, _ in cases
    ]
    assert [found and found.resource for found in parsed(pods, *given)] == [
        expected for _, _, expected in cases
    ]


def test_a_rejection_for_another_reason_keeps_the_words_of_the_kubelet(pods: Pods) -> None:
    enough = "Pod Node didn't have enough resource"
    cpus = FRAME.format("not enough cpus available to satisfy request")
    memory = FRAME.format("[memorymanager] failed to get the default NUMA affinity")
    predicates = "Pod GeneralPredicates failed due to unknown reason, which is unexpected."
    limit = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[data]"
    others = [
        ("UnexpectedAdmissionError", cpus),
        ("UnexpectedAdmissionError", memory),
        ("UnexpectedAdmissionError", predicates),
        ("UnexpectedAdmissionError", f"Pod {PREEMPTION.replace(KVM, 'cpu')}"),
        ("UnexpectedAdmissionError", ""),
        *(
            ("UnexpectedAdmissionError", FRAME.format(f"open /dev/x: {error}"))
            for error in (
                "no such device",
                "device or resource busy",
                "inappropriate ioctl for device",
                "invalid cross-device link",
            )
        ),
        ("TopologyAffinityError", "Pod Resources cannot be allocated with Topology locality"),
        ("NodeAffinity", "Pod Predicate NodeAffinity failed"),
        ("OutOfcpu", f"{enough}: cpu, requested: 2000, used: 3000, capacity: 4000"),
        ("OutOfpods", f"{enough}: pods, requested: 1, used: 110, capacity: 110"),
        ("OutOfephemeral-storage", f"{enough}: ephemeral-storage, requested: 1"),
        ("OutOfhugepages-2Mi", f"{enough}: hugepages-2Mi, requested: 1"),
        ("OutOfkubernetes.io/batch-cpu", f"{enough}: kubernetes.io/batch-cpu, requested: 1"),
        ("AppArmor", "Pod Cannot enforce AppArmor: AppArmor is not enabled on the host"),
        ("VolumeAttachmentLimitExceeded", limit),
        ("AReasonOfTheFuture", "Pod was rejected: for something that is not yet known"),
    ]
    read = pods(*(rejected(reason, message, (KVM,)) for reason, message in others))
    for (reason, message), pod in zip(others, read, strict=True):
        found = pod.rejection
        assert (found.refused, found.resource) == (RejectionKind.NOT_FOR_A_DEVICE, "")
        assert (found.reason, found.message) == (reason, message)


def test_too_few_cores_are_counted_and_a_wrong_number_of_cpus_is_not(pods: Pods) -> None:
    few = (
        "Pod was rejected: SMT Alignment Error: not enough free physical CPUs: available physical "
        "CPUs = 1, requested CPUs = 2, CPUs per core = 1"
    )
    odd = "Pod was rejected: SMT Alignment Error: requested 3 cpus not multiple cpus per core = 2"
    read = pods(*(rejected("SMTAlignmentError", message) for message in (few, odd)))
    assert [(pod.rejection.requested, pod.rejection.available) for pod in read] == [
        (2, 1),
        (None, None),
    ]


def test_a_critical_pod_for_which_nothing_can_be_preempted_names_what_it_lacks(pods: Pods) -> None:
    several = PREEMPTION.replace("[(", "[(res: cpu, q: 100), (")
    given = [
        rejected("UnexpectedAdmissionError", f"Pod was rejected: {message}")
        for message in (PREEMPTION, several)
    ]
    assert parsed(pods, *given) == [Parsed(RejectionKind.OTHER, KVM, 1)] * 2


def test_a_pod_that_failed_otherwise_was_not_rejected(pods: Pods) -> None:
    odd: tuple[Any, ...] = (None, 7, [], {}, True)
    others: list[tuple[Any, Any]] = [
        ("Evicted", "The node was low on resource: memory."),
        ("Evicted", "Pod was rejected: The node had condition: [DiskPressure]."),
        ("NodeShutdown", "Pod was rejected as the node is shutting down."),
        ("Terminated", "Pod was terminated in response to imminent node shutdown."),
        ("Shutdown", "Node is shutting, evicting pods"),
        ("Preempting", "Preempted in order to admit critical pod"),
        ("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"),
        ("NodeLost", ""),
        ("", FRAME.format(UNREGISTERED)),
        ("", ""),
        *((text, text) for text in odd),
    ]
    given = [rejected(reason, message, (KVM,)) for reason, message in others]
    phases = ("Pending", "Running", "Succeeded", "Unknown", "", None)
    given += [
        rejected("UnexpectedAdmissionError", FRAME.format(UNREGISTERED), phase=phase)
        for phase in phases
    ]
    given += [rejected("OutOfcpu", containerStatuses=RAN)]
    assert parsed(pods, *given) == [None] * len(given)


SCHEDULER = {"manager": "kube-scheduler", "time": "2026-01-01T09:00:00Z"}
OLD = {"manager": "kubelet", "operation": "Update", "time": "2026-01-01T00:00:16Z"}
NEW = {
    "manager": "kubelet",
    "operation": "Update",
    "subresource": "status",
    "time": "2026-01-01T00:00:19Z",
}
RAN = [{"state": {"terminated": {"startedAt": "2026-01-01T00:00:05Z"}}}]


def test_a_rejection_has_its_time_and_whose_clock_that_is(pods: Pods) -> None:
    cases: list[tuple[Any, Any, Any, int | None, bool]] = [
        # What the kubelet wrote last, by the API server's clock.
        ([OLD], None, None, 16, True),
        ([NEW], None, None, 19, True),
        ([NEW, OLD, SCHEDULER], "2026-01-01T00:00:00Z", RAN, 19, True),
        # Or by the kubelet's own, if it is of the same moment or alone, and the pod never ran.
        ([OLD], "2026-01-01T00:00:16Z", None, 16, False),
        ([OLD], "2026-01-01T00:00:12Z", None, 12, False),
        ([OLD], "2026-01-01T00:00:21Z", None, 21, False),
        ([OLD], "2026-01-01T00:00:10Z", None, 16, True),  # of an earlier admission
        ([OLD], "2026-01-01T00:00:16Z", RAN, 16, True),
        ([{**NEW, "subresource": "ephemeralcontainers"}], "2026-01-01T00:00:10Z", None, 10, False),
        (
            [{**NEW, "time": "yesterday"}, {"manager": "kubelet"}],
            "2026-01-01T00:00:10Z",
            None,
            10,
            False,
        ),
        ([SCHEDULER], "2026-01-01T00:00:10Z", None, 10, False),
        (None, "2026-01-01T00:00:10Z", None, 10, False),
        ([], "2026-01-01T00:00:10Z", RAN, None, False),
        *(
            ([], odd, None, None, False)
            for odd in (None, "", "yesterday", 7, "2026-01-01", "0001-01-01T00:00:00Z")
        ),
        ([], "9999-12-31T23:59:59-14:00", None, None, False),
    ]
    read = pods(*(
        rejected(f"OutOf{KVM}", fields=fields, startTime=start, containerStatuses=ran)
        for fields, start, ran, _, _ in cases
    ))  # fmt: skip
    for pod, (*_, second, by_api) in zip(read, cases, strict=True):
        expected = None if second is None else datetime(2026, 1, 1, 0, 0, second, tzinfo=UTC)
        assert (pod.rejection.at, pod.rejection.by_api) == (expected, by_api)


def test_a_rejection_keeps_when_an_earlier_kubelet_had_admitted_the_pod(pods: Pods) -> None:
    message = FRAME.format(UNREGISTERED)
    given = rejected(
        "UnexpectedAdmissionError", message, fields=[NEW], startTime="2025-12-31T00:00:00Z"
    )
    (pod,) = pods(given)
    assert pod.rejection.at == datetime(2026, 1, 1, 0, 0, 19, tzinfo=UTC)
    assert pod.rejection.start_time == datetime(2025, 12, 31, tzinfo=UTC)


def test_any_message_is_parsed_truncated_and_printable(pods: Pods) -> None:
    long = (
        "endpoint " * 9000,
        "a." * 30_000,
        "/" * 50_000,
        "endpoint {a/b} " * 9000,
        "rpc error: " * 9000,
    )
    odd = (
        "unknown device plugin \u017f.io/\u212a",
        "a\ud800 \x1b[2J\n",
        "devices \u202e",
        "dial unix /a\x9b: device",
    )
    given = [
        rejected("UnexpectedAdmissionError", f"Allocate failed due to {text}")
        for text in (*long, *odd)
    ]
    for pod in pods(*given, rejected("OutOf\u017f.io/\u212a"), rejected(f"OutOf{KVM}", odd[1])):
        if (found := pod.rejection) is not None:
            assert re.fullmatch(r"|[A-Za-z0-9._-]+/[A-Za-z0-9._-]+", found.resource)
            assert len(found.message) <= 400
            assert found.message.isprintable()
            assert found.socket.isprintable()
