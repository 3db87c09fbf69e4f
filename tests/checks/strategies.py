"""Nodes with devices and with volumes, on which anything may be wrong with them."""

from dataclasses import replace
from datetime import timedelta

from hypothesis import strategies as st

from agent.checks.cluster.volume_causes import ENTRIES
from agent.model.rejections import TOPOLOGY, UNEXPECTED_ERROR, RejectionKind
from agent.model.snapshot import NodeDevices, Pod, Snapshot
from agent.model.volumes import Attachment, Holder, Mount, VolumeEvent
from tests import builders as b
from tests.builders import (
    CLOUD_DISK,
    DISK,
    GRACE,
    KVM,
    NOW,
    WORKER,
    attachments,
    node,
    node_using,
    processes,
    sandbox,
)
from tests.strategies import RESOURCES, agos, device_managers, names, seldom


def several(values: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(values, max_size=2, unique=True)


_amounts = st.integers(0, 2)


@st.composite
def pods_with_devices(draw: st.DrawFn) -> list[Pod]:
    """Pods with devices, rejected or running, of few controllers."""
    several = []
    for number in range(draw(st.integers(0, 7))):
        resource, ago = draw(st.sampled_from([*RESOURCES, ""])), draw(agos)
        rejected = b.refused_pod(
            f"{draw(names)}-{number}",
            resource,
            ago=ago,
            refused=draw(st.sampled_from(RejectionKind)),
        )
        pod = replace(
            rejected,
            wants=draw(st.sampled_from([(), (KVM,), RESOURCES])),
            wants_in_init=draw(st.sampled_from([(), (KVM,)])),
            has_resource_claims=draw(seldom()),
            dra_resources=RESOURCES[1:] if draw(seldom()) else (),
            static=draw(seldom()),
            started=draw(st.one_of(st.none(), agos.map(lambda ago: NOW - ago))),
            controller=draw(
                st.sampled_from(
                    ["", "ReplicaSet/web", "ReplicaSet/web", "Job/once", "StatefulSet/db"]
                )
            ),
        )
        if draw(seldom()):
            pod = replace(pod, deleting=True, deletion=NOW - draw(agos))
        if draw(st.booleans()):
            pod = replace(pod, phase="Running", rejection=None)
        elif pod.rejection is not None:
            pod = replace(
                pod,
                rejection=replace(
                    pod.rejection,
                    available=draw(st.sampled_from([None, 0, 0, 1])),
                    start_time=draw(st.one_of(st.none(), agos.map(lambda ago: NOW - ago))),
                    reason=draw(st.sampled_from(["", UNEXPECTED_ERROR, TOPOLOGY])),
                    by_api=draw(st.booleans()),
                ),
            )
        several.append(pod)
    return several


@st.composite
def device_nodes(draw: st.DrawFn) -> Snapshot:
    """A node of which everything was read, and on which everything about devices may be wrong."""
    node_devices = draw(
        st.lists(
            st.builds(NodeDevices, st.sampled_from(RESOURCES), _amounts, _amounts),
            max_size=2,
            unique_by=lambda device: device.resource,
        )
    )
    pods = draw(pods_with_devices())
    unlisted = [f"{name}-{number}" for name in draw(several(names)) for number in range(2)]
    snapshot = node(
        *(sandbox(digit * 64, name) for digit, name in zip("89de", unlisted, strict=False)),
        device_plugins=draw(device_managers()),
        pods=pods,
        node=[
            replace(
                WORKER,
                devices=tuple(node_devices),
                kubelet=draw(st.sampled_from(["", "v1.20.4", "v1.25.12", "v1.27.2", "v1.34.1"])),
                ready=not draw(seldom()),
            )
        ],
    )
    skew = draw(
        st.sampled_from([None, timedelta(0), timedelta(seconds=90), timedelta(seconds=-90)])
    )
    uptime = draw(st.sampled_from([snapshot.uptime, timedelta(seconds=700), timedelta(seconds=5)]))
    return replace(snapshot, api_skew=skew, uptime=uptime)


VOLUMES = (DISK, CLOUD_DISK, "kubernetes.io/csi/ebs.csi.aws.com^vol-8", "nodeleak/disk/data")
CLAIMS = ("data", "logs")
volumes, claims = st.sampled_from(VOLUMES), st.sampled_from(CLAIMS)
_waiting_for = st.sampled_from([timedelta(seconds=n) for n in (0, 119, 120, 599, 600, 7200)])


@st.composite
def pods_with_volumes(draw: st.DrawFn) -> Pod:
    pod = b.waiting_pod(
        draw(names), *draw(several(volumes)), claims=draw(several(claims)), ago=draw(_waiting_for)
    )
    if draw(seldom()):
        pod = replace(pod, deleting=True)
    return replace(pod, phase="Running", started=NOW) if draw(seldom()) else pod


_perhaps = st.sampled_from([None, True, False])
_holders = st.sampled_from([None, (), (Holder("worker-2", ready=False),)])
attachment_strategy = st.builds(
    lambda volume, attached, failed, pod, claim, **others: Attachment(
        volume,
        attached,
        failed and not attached,
        f"{pod.partition('/')[0]}/{claim}" if claim else None,
        **others,
    ),
    volumes,
    st.sampled_from([None, True, True, False]),
    seldom(),
    names,
    st.sampled_from([*CLAIMS, ""]),
    exists=_perhaps,
    detach_error=st.sampled_from(["", "", "busy"]),
    holders=_holders,
    shared=_perhaps,
    driver_registered=_perhaps,
)
volume_events = st.builds(
    VolumeEvent,
    names.map(lambda name: f"uid of {name}"),
    st.sampled_from(["", *ENTRIES]),
    st.just("Multi-Attach error"),
)


@st.composite
def volume_nodes(draw: st.DrawFn) -> Snapshot:
    """A node of which everything was read, and on which anything may be wrong with volumes."""
    waiting = draw(st.lists(pods_with_volumes(), max_size=3, unique_by=lambda pod: pod.name))
    usual = node_using(
        *draw(st.lists(volumes, min_size=1, max_size=3, unique=True)),
        attached=draw(st.lists(volumes, max_size=1)),
        ready=not draw(seldom()),
        controller_attach=not draw(seldom()),
    )
    return node(
        *(sandbox("7" * 64, pod.name) for pod in waiting[:1] if draw(seldom())),
        pods=waiting,
        node=[usual],
        processes=[processes(kubelet=timedelta(seconds=60) if draw(seldom()) else GRACE)],
        mounts=draw(
            st.lists(
                st.builds(Mount, volumes, names.map(lambda name: f"uid of {name}")), max_size=1
            )
        ),
        attachments=replace(
            attachments(
                *draw(
                    st.lists(
                        attachment_strategy,
                        max_size=3,
                        unique_by=lambda attachment: attachment.volume,
                    )
                ),
                failed_pods=[pod.uid for pod in waiting if draw(seldom())],
                not_requested=["list events"] if draw(seldom()) else [],
            ),
            events=tuple(draw(st.lists(volume_events, max_size=2))),
            events_read=draw(_perhaps),
        ),
    )
