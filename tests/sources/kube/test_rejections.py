"""How the kubelet rejects pods for devices, in the messages of its versions 1.17 to 1.36."""

import re
import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.model.rejections import Rejection, RejectionKind
from agent.sources.kube.rejections import read_rejection

KVM = "devices.kubevirt.io/kvm"
GPU = "nvidia.com/gpu"
STARTED = datetime(2026, 1, 1, tzinfo=UTC)
GONE = "rpc error: code = Unavailable desc ="
PREFERRED = "device plugin GetPreferredAllocation rpc failed with err:"
STRUCT_1_18 = (
    "&{0xc00 0xc01 /var/lib/kubelet/device-plugins/kubevirt-kvm.sock devices.kubevirt.io/kvm "
    "{13847551 97 0x72} {0 0} 0x1f}"
)
STRUCT_1_25 = "&{{0 0} devices.kubevirt.io/kvm <nil> {13847551 97 0x72} 0xc0}"
"""How Go prints an endpoint."""
PREEMPTION = (
    "Unexpected error while attempting to recover from admission failure: preemption: error finding a set of pods to "
    f"preempt: no set of running pods found to reclaim resources: [(res: {KVM}, q: 1), ]"
)
DIALLED = 'dial unix /var/lib/kubelet/device-plugins/kubevirt-kvm.sock: connect: connection refused"'

FRAMES = {
    "1.17": "Pod Update plugin resources failed due to {}, which is unexpected.",
    "1.18": "Pod Allocate failed due to {}, which is unexpected",
    "1.20": "Pod Allocate failed due to {}, which is unexpected",
    "1.24": "Pod Allocate failed due to {}, which is unexpected",
    "1.26": "Pod was rejected: Allocate failed due to {}, which is unexpected",
    "1.36": "Pod was rejected: Allocate failed due to {}, which is unexpected",
    "an event": "Allocate failed due to {}, which is unexpected",
    "a copy with a dot": "Pod was rejected: Allocate failed due to {}, which is unexpected.",
    "a copy cut short": "Pod Allocate failed due to {}",
}


class Parsed(NamedTuple):
    """A parsed rejection, without its time and text."""

    refused: RejectionKind
    resource: str = ""
    requested: int | None = None
    available: int | None = None
    socket: str = ""


CAUSES = [
    (f"can't allocate unregistered device {KVM}", Parsed(RejectionKind.UNREGISTERED, KVM)),
    (f"cannot allocate unregistered device {KVM}", Parsed(RejectionKind.UNREGISTERED, KVM)),
    (f"no healthy devices present; cannot allocate unhealthy devices {GPU}", Parsed(RejectionKind.NO_HEALTHY, GPU)),
    (
        f"previously allocated devices are no longer healthy; cannot allocate unhealthy devices {GPU}",
        Parsed(RejectionKind.NO_HEALTHY, GPU),
    ),
    (
        f"requested number of devices unavailable for {KVM}. Requested: 1, Available: 0",
        Parsed(RejectionKind.INSUFFICIENT, KVM, 1, 0),
    ),
    (
        "requested number of devices unavailable for nvidia.com/GRID_P40-1Q.v2. Requested: 8, Available: 3",
        Parsed(RejectionKind.INSUFFICIENT, "nvidia.com/GRID_P40-1Q.v2", 8, 3),
    ),
    (f"unknown Device Plugin {KVM}", Parsed(RejectionKind.PLUGIN_GONE, KVM)),
    (f"endpoint not found in cache for a registered resource: {KVM}", Parsed(RejectionKind.PLUGIN_GONE, KVM)),
    (f"endpoint {STRUCT_1_18} has been stopped", Parsed(RejectionKind.PLUGIN_GONE, KVM, socket="kubevirt-kvm.sock")),
    (f"endpoint {STRUCT_1_25} has been stopped", Parsed(RejectionKind.PLUGIN_GONE, KVM)),
    (
        f'{GONE} connection error: desc = "transport: Error while dialing {DIALLED}',
        Parsed(RejectionKind.PLUGIN_GONE, socket="kubevirt-kvm.sock"),
    ),
    (
        f'{GONE} all SubConns are in TransientFailure, latest connection error: "{DIALLED}',
        Parsed(RejectionKind.PLUGIN_GONE, socket="kubevirt-kvm.sock"),
    ),
    (
        f'{GONE} "dial unix /var/lib/kubelet/device-plugins/gpu: connect: no such file"',
        Parsed(RejectionKind.PLUGIN_GONE, socket="gpu"),
    ),
    (f"{GONE} transport is closing", Parsed(RejectionKind.PLUGIN_GONE)),
    (f"{GONE} error reading from server: EOF", Parsed(RejectionKind.PLUGIN_GONE)),
    ("rpc error: code = Canceled desc = grpc: the client connection is closing", Parsed(RejectionKind.PLUGIN_GONE)),
    (f"{PREFERRED} {GONE} transport is closing", Parsed(RejectionKind.PLUGIN_GONE)),
    (f"{PREFERRED} rpc error: code = Unknown desc = nvml: GPU is lost", Parsed(RejectionKind.OTHER)),
    (
        "rpc error: code = Unknown desc = requested number of devices unavailable for a/b. Requested: 1, Available: 0",
        Parsed(RejectionKind.OTHER),
    ),
    (
        f'pod "0aa1c1f2" container "compute" changed request for resource "{KVM}" from 1 to 2',
        Parsed(RejectionKind.OTHER, KVM, 2),
    ),
    (
        f"pod 0aa1c1f2 container compute changed request for resource {KVM} from 1 to 2",
        Parsed(RejectionKind.OTHER, KVM, 2),
    ),
    ("unexpectedly allocated less resources than required. Requested: 2, Got: 1", Parsed(RejectionKind.OTHER, "", 2)),
    ("no containers return in allocation response &AllocateResponse{}", Parsed(RejectionKind.OTHER)),
    ('failed to write checkpoint file "kubelet_internal_checkpoint": no space left', Parsed(RejectionKind.OTHER)),
    ("a device of words that no version has said yet", Parsed(RejectionKind.OTHER)),
]


def parse_rejection(
    reason: str,
    message: str,
    wants: tuple[str, ...] = (),
    *,
    started: datetime | None = None,
    fields: Any = None,
    **status: Any,
) -> Rejection | None:
    whole = {"phase": "Failed", "reason": reason, "message": message, **status}
    return read_rejection({"managedFields": fields}, whole, wants, started)


def parsed_of(rejection: Rejection | None) -> Parsed | None:
    if rejection is None:
        return None
    return Parsed(
        rejection.refused, rejection.resource, rejection.requested, rejection.available, rejection.socket
    )  # fmt: skip


@pytest.mark.parametrize(("cause", "expected"), CAUSES, ids=[cause[:50] for cause, _ in CAUSES])
def test_a_device_rejection_of_every_version_is_parsed(cause: str, expected: Parsed) -> None:
    for frame in FRAMES.values():
        assert parsed_of(parse_rejection("UnexpectedAdmissionError", frame.format(cause))) == expected


def test_an_exhausted_resource_differs_from_an_unregistered_one() -> None:
    for counts, expected in (
        ("requested: 1, used: 0, capacity: 0", Parsed(RejectionKind.NO_CAPACITY, KVM, 1, 0)),
        ("requested: 2, used: 3, capacity: 0", Parsed(RejectionKind.NO_CAPACITY, KVM, 2, 0)),
        ("requested: 1, used: 110, capacity: 110", Parsed(RejectionKind.INSUFFICIENT, KVM, 1, 0)),
        ("requested: 4, used: 108, capacity: 110", Parsed(RejectionKind.INSUFFICIENT, KVM, 4, 2)),
        ("requested: 1, used: 9, capacity: 8", Parsed(RejectionKind.INSUFFICIENT, KVM, 1, 0)),
        ("and in other words", Parsed(RejectionKind.OTHER, KVM)),
    ):
        for prefix in ("", "Pod ", "Pod was rejected: "):
            message = f"{prefix}Node didn't have enough resource: {KVM}, {counts}"
            assert parsed_of(parse_rejection(f"OutOf{KVM}", message)) == expected


def test_a_rejection_of_a_real_1_20_node_is_parsed() -> None:
    message = (
        "Pod Allocate failed due to requested number of devices unavailable for devices.lab/kvm. "
        "Requested: 1, Available: 0, which is unexpected"
    )
    assert parse_rejection("UnexpectedAdmissionError", message, startTime="2026-01-01T01:25:47Z") == Rejection(
        refused=RejectionKind.INSUFFICIENT,
        resource="devices.lab/kvm",
        requested=1,
        available=0,
        at=datetime(2026, 1, 1, 1, 25, 47, tzinfo=UTC),
        message=message,
    )


def test_a_pod_that_failed_otherwise_is_no_device_rejection() -> None:
    for reason, message in (
        ("UnexpectedAdmissionError", FRAMES["1.20"].format("not enough cpus available to satisfy request")),
        (
            "UnexpectedAdmissionError",
            FRAMES["1.36"].format("not enough cpus available to satisfy request: requested=3, available=2"),
        ),
        (
            "UnexpectedAdmissionError",
            FRAMES["1.26"].format("[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough"),
        ),
        ("UnexpectedAdmissionError", "Pod GeneralPredicates failed due to unknown reason, which is unexpected."),
        ("UnexpectedAdmissionError", f"Pod {PREEMPTION}"),
        ("UnexpectedAdmissionError", ""),
        ("TopologyAffinityError", "Pod Resources cannot be allocated with Topology locality"),
        ("SMTAlignmentError", "Pod SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2"),
        ("NodeAffinity", "Pod Predicate NodeAffinity failed"),
        ("NodePorts", "Pod Predicate NodePorts failed"),
        ("OutOfcpu", "Pod Node didn't have enough resource: cpu, requested: 2000, used: 3000, capacity: 4000"),
        ("OutOfmemory", "Pod Node didn't have enough resource: memory, requested: 2, used: 3, capacity: 4"),
        ("OutOfpods", "Pod Node didn't have enough resource: pods, requested: 1, used: 110, capacity: 110"),
        ("OutOfephemeral-storage", "Pod Node didn't have enough resource: ephemeral-storage, requested: 1"),
        ("OutOfhugepages-2Mi", "Pod Node didn't have enough resource: hugepages-2Mi, requested: 1"),
        ("OutOfkubernetes.io/batch-cpu", "Pod Node didn't have enough resource: kubernetes.io/batch-cpu, requested: 1"),
        ("Evicted", "The node was low on resource: memory."),
        ("Shutdown", "Node is in progress of shutting down, not admitting any new pods"),
        ("NodeShutdown", "Pod was rejected as the node is shutting down."),
        ("Terminated", "Pod was terminated in response to imminent node shutdown."),
        ("", FRAMES["1.26"].format(CAUSES[0][0])),
    ):
        assert parse_rejection(reason, message, (KVM,)) is None
    for phase in ("Pending", "Running", "Succeeded", "Unknown", "", None):
        assert parse_rejection("UnexpectedAdmissionError", FRAMES["1.26"].format(CAUSES[0][0]), phase=phase) is None
    odd: Any
    for odd in (None, 7, [], {}, True):
        assert parse_rejection(odd, odd, phase="Failed") is None
        assert parse_rejection("UnexpectedAdmissionError", odd) is None


def test_without_a_resource_in_the_message_the_only_one_that_was_requested_is_used() -> None:
    def resource(cause: str, *wants: str) -> str:
        rejected = parse_rejection("UnexpectedAdmissionError", FRAMES["1.26"].format(cause), wants)
        assert rejected is not None
        return rejected.resource

    closing = "rpc error: code = Unavailable desc = transport is closing"
    assert (resource(closing), resource(closing, KVM), resource(closing, KVM, GPU)) == ("", KVM, "")
    assert resource(CAUSES[0][0], GPU) == KVM


SCHEDULER = {"manager": "kube-scheduler", "time": "2026-01-01T09:00:00Z"}
OLD = {"manager": "kubelet", "operation": "Update", "time": "2026-01-01T00:00:06Z"}
NEW = {"manager": "kubelet", "operation": "Update", "subresource": "status", "time": "2026-01-01T00:00:09Z"}
LATEST = datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC)
TIMES = [
    ([OLD], None, (datetime(2026, 1, 1, 0, 0, 6, tzinfo=UTC), True)),
    ([NEW], None, (LATEST, True)),
    ([NEW, OLD, SCHEDULER], STARTED, (LATEST, True)),
    ([{**NEW, "subresource": "ephemeralcontainers"}], None, (STARTED, False)),
    ([{**NEW, "time": "yesterday"}, {"manager": "kubelet"}], None, (STARTED, False)),
    ([SCHEDULER], None, (STARTED, False)),
    (None, None, (STARTED, False)),
    (None, STARTED, (None, False)),
    ([], STARTED, (None, False)),
]


def test_a_rejection_time_names_its_clock() -> None:
    for fields, started, expected in TIMES:
        rejected = parse_rejection(f"OutOf{KVM}", "", fields=fields, started=started, startTime="2026-01-01T00:00:00Z")
        assert rejected is not None
        assert (rejected.at, rejected.by_api) == expected


def test_a_pod_that_never_ran_is_timed_by_the_kubelet() -> None:
    fields = [{"manager": "kubelet", "operation": "Update", "time": "2026-11-21T11:42:24Z"}]
    for start, ran, expected in (
        ("2026-11-21T11:42:24Z", None, ("11:42:24", False)),
        ("2026-11-21T11:42:20Z", None, ("11:42:20", False)),
        ("2026-11-21T11:42:29Z", None, ("11:42:29", False)),
        ("2026-11-21T11:42:18Z", None, ("11:42:24", True)),  # of an earlier admission
        ("2026-11-21T11:42:24Z", STARTED, ("11:42:24", True)),
        (None, None, ("11:42:24", True)),
    ):
        rejected = parse_rejection(f"OutOf{KVM}", "", fields=fields, started=ran, startTime=start)
        assert rejected is not None
        assert rejected.at is not None
        assert (f"{rejected.at:%H:%M:%S}", rejected.by_api) == expected


def test_a_rejection_without_a_time_is_still_a_rejection() -> None:
    for start in (None, "", "yesterday", 7, "2026-01-01", "0001-01-01T00:00:00Z"):
        rejected = parse_rejection(f"OutOf{KVM}", "", startTime=start)
        assert rejected is not None
        assert rejected.at is None


def test_a_message_of_any_length_is_parsed_quickly_and_truncated() -> None:
    for text in ("endpoint " * 9000, "a." * 30_000, "/" * 50_000, "endpoint {a/b} " * 9000, "rpc error: " * 9000):
        begun = time.perf_counter()
        rejected = parse_rejection("UnexpectedAdmissionError", f"Allocate failed due to {text}")
        assert time.perf_counter() - begun < 30
        assert rejected is None or len(rejected.message) <= 400


PIECES = st.sampled_from(
    [
        *(cause for cause, _ in CAUSES),
        *FRAMES.values(),
        KVM,
        "a/b",
        "endpoint ",
        " has been stopped",
        "rpc error: ",
        "\u017f/\u212a",
    ]
)
TEXTS = st.text(max_size=60) | st.lists(PIECES | st.text(max_size=9), max_size=6).map("".join)
REASONS = (
    st.just("UnexpectedAdmissionError") | TEXTS.map(lambda text: f"OutOf{text}") | st.just(f"OutOf{KVM}") | st.text()
)


@given(reason=REASONS, message=TEXTS, start=TEXTS, field=TEXTS)
@example("UnexpectedAdmissionError", "Allocate failed due to unknown device plugin \u017f.io/\u212a", "", "")
@example(f"OutOf{KVM}", f"enough resource: x, requested: {'9' * 5000}, used: 1, capacity: 1", "", "")
@example(f"OutOf{KVM}", "a\ud800 \x1b[2J\n", "", "")
@example(f"OutOf{KVM}", "", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00+14:00")
def test_any_status_names_a_resource_or_none(reason: str, message: str, start: str, field: str) -> None:
    rejected = parse_rejection(reason, message, fields=[{"manager": "kubelet", "time": field}], startTime=start)
    if rejected is not None:
        assert re.fullmatch(r"|[A-Za-z0-9._-]+/[A-Za-z0-9._-]+", rejected.resource)
        assert rejected.at is None or rejected.at.tzinfo is not None
        assert rejected.message.isprintable()
        assert rejected.socket.isprintable()
